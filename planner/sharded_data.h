/// Sharded data parallelism: each rank keeps a part of every layer's parameters, gathers a layer
/// before it computes and scatters its gradient after, beside the arithmetic of other layers.
///
/// Sources: Rajbhandari et al. 2020 (ZeRO, arXiv:1910.02054, section 7); Zhao et al. 2023 (PyTorch
/// FSDP, arXiv:2304.11277, section 3.3: one layer ahead is gathered, in forward and in backward).
#pragma once

#include <cstdint>
#include <span>

#include "planner/units.h"

namespace troupe {

/// One unit of sharding, usually a layer, and one microbatch.
struct ShardedLayer {
  Seconds forward = 0;
  Seconds backward = 0;  ///< with what it computes again
  Seconds gather = 0;    ///< of its weights
  Seconds scatter = 0;   ///< of its gradients, reduced; between replicas of the group as well
};

struct ShardedSchedule {
  std::uint64_t microbatches = 1;
  std::uint64_t prefetch = 1;  ///< layers gathered ahead of the one that computes; 0: none
  /// Weights are dropped after forward and gathered again for backward (FULL_SHARD); else they stay
  /// until the microbatch ends (SHARD_GRAD_OP).
  bool gathered_twice = true;
  /// Gradients are scattered for every microbatch, else after the last one only (no_sync).
  bool scattered_each = true;
};

struct ShardedSeconds {
  Seconds arithmetic = 0;
  Seconds exposed = 0;  ///< waits for the link, and scatters after the last layer
  Seconds total() const { return arithmetic + exposed; }
};

/// One device computes the layers in order and back, for each microbatch; one link carries gathers
/// and scatters one by one, in the order in which they are issued. The gather of a layer is issued
/// when the layer `prefetch` places before it begins, its scatter when its backward ends.
ShardedSeconds sharded_step_seconds(std::span<const ShardedLayer> layers,
                                    const ShardedSchedule& schedule);

/// Parameters of which the whole weights are held at once: the most that `prefetch` + 1 neighbours
/// have together.
double gathered_parameters(std::span<const double> layers, std::uint64_t prefetch);

}  // namespace troupe
