/// What rates alone do not know of a device: how much longer than by its rates (seconds_of) a layer
/// takes at some sizes, because of caches, of shapes that products like less, and of ops between
/// them. Measured at a few sizes, carried to others.
#pragma once

#include <string_view>
#include <vector>

#include "planner/cost.h"
#include "planner/model.h"
#include "planner/plan.h"

namespace troupe {

std::string_view to_string(LayerKind kind);  ///< "embedding", "block", "head"

/// What tells sizes of one kind of layer apart.
struct LayerSize {
  LayerKind kind = LayerKind::block;
  DType compute = DType::f32;
  ModelFamily family = ModelFamily::gpt2;
  std::uint32_t width = 1;
  std::uint32_t tokens = 1;  ///< of a microbatch
  std::uint32_t sequence = 1;
  std::uint32_t vocabulary = 1;  ///< of no matter to blocks
  friend bool operator==(const LayerSize&, const LayerSize&) = default;
};
LayerSize size_of(const ModelSpec& model, const StepShape& shape, LayerKind kind);

/// One layer that was measured: seconds by seconds_of(profile, rates), action by action.
struct LayerRatio {
  LayerSize size;
  LayerSeconds ratio;
};
/// No time counts as less than a nanosecond. An action that rates say takes no time has ratio 1.
LayerRatio ratio_of(const LayerSize& size,
                    const LayerSeconds& measured,
                    const LayerProfile& profile,
                    const DeviceRates& rates);

/// Seconds of each action of a layer of this size: seconds_of(profile, rates) times the mean of the
/// ratios (of their logarithms) of the same kind and type, near sizes by far the most: weights fall
/// with the fourth power of the distance between the sizes' logarithms, and a size that was
/// measured stands alone. Where nothing alike was measured: seconds_of.
LayerSeconds seconds_by_ratios(const std::vector<LayerRatio>& measured,
                               const LayerSize& size,
                               const LayerProfile& profile,
                               const DeviceRates& rates);

}  // namespace troupe
