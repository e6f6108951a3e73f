#include "planner/layer_ratios.h"

#include <algorithm>
#include <cmath>

namespace troupe {
namespace {

constexpr Seconds LayerSeconds::*actions[]{&LayerSeconds::forward, &LayerSeconds::backward_input,
                                           &LayerSeconds::backward_weight, &LayerSeconds::norm,
                                           &LayerSeconds::update};

/// Between two sizes: doublings of the width count in full, those of what is done more often by a
/// half, as loops are as long as the width; another family is like one doubling.
double distance(const LayerSize& a, const LayerSize& b) {
  const auto doublings = [](std::uint32_t one, std::uint32_t other) {
    return std::abs(std::log2(static_cast<double>(one) / static_cast<double>(other)));
  };
  double sum = doublings(a.width, b.width) + doublings(a.tokens, b.tokens) / 2 +
               doublings(a.sequence, b.sequence) / 2;
  if (a.kind != LayerKind::block) sum += doublings(a.vocabulary, b.vocabulary) / 2;
  return sum + (a.family == b.family ? 0 : 1);
}

}  // namespace

std::string_view to_string(LayerKind kind) {
  if (kind == LayerKind::embedding) return "embedding";
  return kind == LayerKind::head ? "head" : "block";
}

LayerSize size_of(const ModelSpec& model, const StepShape& shape, LayerKind kind) {
  return {kind,
          shape.compute,
          model.family,
          model.width,
          shape.microbatch_size * shape.sequence_length,
          shape.sequence_length,
          model.vocabulary};
}

LayerRatio ratio_of(const LayerSize& size,
                    const LayerSeconds& measured,
                    const LayerProfile& profile,
                    const DeviceRates& rates) {
  const LayerSeconds by_rates = seconds_of(profile, rates, size.compute);
  LayerRatio out{size, {1, 1, 1, 1, 1}};
  for (const auto action : actions)
    if (by_rates.*action > 0)
      out.ratio.*action = std::max(measured.*action, 1e-9) / (by_rates.*action);
  return out;
}

LayerSeconds seconds_by_ratios(const std::vector<LayerRatio>& measured,
                               const LayerSize& size,
                               const LayerProfile& profile,
                               const DeviceRates& rates) {
  LayerSeconds seconds = seconds_of(profile, rates, size.compute);
  LayerSeconds logarithms;
  double weights = 0;
  for (const LayerRatio& one : measured) {
    if (one.size.kind != size.kind || one.size.compute != size.compute) continue;
    const double far = std::pow(distance(one.size, size), 4);
    // Next to a measured size all others weigh nothing.
    const double weight = 1 / std::max(far, 1e-12);
    weights += weight;
    for (const auto action : actions) logarithms.*action += weight * std::log(one.ratio.*action);
  }
  if (weights == 0) return seconds;
  for (const auto action : actions) seconds.*action *= std::exp(logarithms.*action / weights);
  return seconds;
}

}  // namespace troupe
