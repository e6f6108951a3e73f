/// What one layer costs, as counted by running it on the meta device, and what a device can do.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/recompute.h"
#include "planner/units.h"

namespace troupe {

/// Work of one action of one layer for one microbatch.
struct OpCount {
  Flops matmul_flops = 0;  ///< in matrix products, at the compute type's rate
  Flops other_flops = 0;   ///< everything else, at the f32 vector rate
  Bytes bytes_moved = 0;   ///< read and written, each tensor once per op
  std::uint32_t launches = 0;
  OpCount& operator+=(const OpCount& other);
  /// Promise: `part` is no more than `whole` in anything.
  friend OpCount operator-(OpCount whole, const OpCount& part);
  friend bool operator==(const OpCount&, const OpCount&) = default;
};

/// What differs of a block that computes again.
struct RecomputedLayer {
  Bytes saved_bytes = 0;
  Bytes forward_workspace_bytes = 0;
  Bytes backward_workspace_bytes = 0;
  OpCount again;  ///< of one backward
};

/// One layer at one microbatch shape. Filled by kernels/profile_layer on the meta device.
struct LayerProfile {
  LayerKind kind = LayerKind::block;
  OpCount forward, backward_input, backward_weight, norm, update;
  // All bytes are arena-rounded part by part, so stages are sums (planner/stage_memory.h).
  Bytes weight_bytes = 0;  ///< f32 master weights, plus bf16 copies where computed in bf16
  Bytes gradient_bytes = 0;
  Bytes optimizer_bytes = 0;
  /// Of a tied head: the part of weight_bytes and optimizer_bytes (its copy of the token table)
  /// that it does not take when the embedding is in the same stage; else 0.
  Bytes shared_weight_bytes = 0;
  Bytes shared_optimizer_bytes = 0;
  /// Kept per microbatch from F to B/W: with this layer's output, without its input (the layer
  /// before keeps that; a stage's first layer, unless the embedding: output_bytes more).
  Bytes saved_bytes = 0;
  Bytes deferred_bytes = 0;  ///< kept per microbatch from I to W under a split backward
  Bytes forward_workspace_bytes = 0;
  Bytes backward_workspace_bytes = 0;  ///< of I, W or fused B, the largest
  Bytes update_workspace_bytes = 0;
  Bytes output_bytes = 0;  ///< the boundary tensor after this layer (and its gradient's size)
  OpCount again;           ///< what backward computes again, beside backward_input
  /// Of a block; without them `recomputed` has its own rule.
  std::optional<RecomputedLayer> selective, full;
};

/// The layer under a policy. Where the profile does not say: full keeps the output alone, runs
/// all of F again and has the rest of what was saved as workspace; selective changes nothing.
LayerProfile recomputed(const LayerProfile& layer, Recompute policy);

/// Measured or catalogued seconds of each action of one layer kind on one device.
struct LayerSeconds {
  Seconds forward = 0, backward_input = 0, backward_weight = 0, norm = 0, update = 0;
};
/// By microbatch size, in sequences.
using SecondsBySize = std::map<std::uint32_t, LayerSeconds>;

/// Rates of one device.
struct DeviceRates {
  FlopsPerSecond matmul_f32 = 0;
  FlopsPerSecond matmul_bf16 = 0;
  FlopsPerSecond vector_f32 = 0;
  BytesPerSecond memory = 0;
  Seconds launch = 0;           ///< overhead of one op
  Seconds action_overhead = 0;  ///< measured cost of one action beside its arithmetic (messages)
};

/// Roofline: max(flops / rate, bytes / bandwidth) + launches x overhead.
Seconds seconds_of(const OpCount& count, const DeviceRates& rates, DType compute);
LayerSeconds seconds_of(const LayerProfile& profile, const DeviceRates& rates, DType compute);
/// Seconds of what a layer computes again, which are part of backward_input, where its forward
/// takes `forward`: its share of the forward's products or, without products, by the rates, or by
/// bytes where there are none.
Seconds again_seconds(const LayerProfile& layer,
                      Seconds forward,
                      const DeviceRates& rates,
                      DType compute);

/// What `wanted` takes where `at` took `seconds`: the same layer at another size. Each action goes
/// by its flops in matrix products or, where it has none, by the bytes it moves.
LayerSeconds carried_over(const LayerSeconds& seconds,
                          const LayerProfile& at,
                          const LayerProfile& wanted);

/// What a layer takes with microbatches of this size: on the straight line between the two known
/// sizes around it; beyond the ends, forward and backward in proportion to the end. Promise: a size
/// is known.
LayerSeconds seconds_at(const SecondsBySize& known, std::uint32_t microbatch_size);

}  // namespace troupe
