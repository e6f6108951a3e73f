#include "planner/cost.h"

#include <algorithm>
#include <iterator>

#include "planner/result.h"

namespace troupe {

OpCount& OpCount::operator+=(const OpCount& other) {
  matmul_flops += other.matmul_flops;
  other_flops += other.other_flops;
  bytes_moved += other.bytes_moved;
  launches += other.launches;
  return *this;
}

OpCount operator-(OpCount whole, const OpCount& part) {
  EXPECTS(part.bytes_moved <= whole.bytes_moved && part.launches <= whole.launches);
  whole.matmul_flops -= part.matmul_flops;
  whole.other_flops -= part.other_flops;
  whole.bytes_moved -= part.bytes_moved;
  whole.launches -= part.launches;
  return whole;
}

Seconds seconds_of(const OpCount& count, const DeviceRates& rates, DType compute) {
  const FlopsPerSecond matmul = compute == DType::bf16 ? rates.matmul_bf16 : rates.matmul_f32;
  const auto time = [](double amount, double rate) { return amount > 0 ? amount / rate : 0; };
  const Seconds arithmetic =
      time(count.matmul_flops, matmul) + time(count.other_flops, rates.vector_f32);
  const Seconds memory = time(static_cast<double>(count.bytes_moved), rates.memory);
  return std::max(arithmetic, memory) + count.launches * rates.launch;
}

LayerProfile recomputed(const LayerProfile& layer, Recompute policy) {
  LayerProfile made = layer;
  if (policy == Recompute::none) return made;
  const auto& known = policy == Recompute::full ? layer.full : layer.selective;
  if (known) {
    made.saved_bytes = known->saved_bytes;
    made.forward_workspace_bytes = known->forward_workspace_bytes;
    made.backward_workspace_bytes = known->backward_workspace_bytes;
    made.again = known->again;
  } else if (policy == Recompute::full) {
    const Bytes rest = layer.saved_bytes - std::min(layer.saved_bytes, layer.output_bytes);
    made.saved_bytes -= rest;
    made.forward_workspace_bytes += rest;
    made.backward_workspace_bytes =
        std::max(layer.backward_workspace_bytes, layer.forward_workspace_bytes) + rest;
    made.again = layer.forward;
  }
  return made;
}

LayerSeconds seconds_of(const LayerProfile& profile, const DeviceRates& rates, DType compute) {
  return {seconds_of(profile.forward, rates, compute),
          seconds_of(profile.backward_input, rates, compute) +
              seconds_of(profile.again, rates, compute),
          seconds_of(profile.backward_weight, rates, compute),
          seconds_of(profile.norm, rates, DType::f32),
          seconds_of(profile.update, rates, DType::f32)};
}

Seconds again_seconds(const LayerProfile& layer,
                      Seconds forward,
                      const DeviceRates& rates,
                      DType compute) {
  if (layer.again == OpCount{}) return 0;
  if (layer.again.matmul_flops > 0 && layer.forward.matmul_flops > 0)
    return forward * layer.again.matmul_flops / layer.forward.matmul_flops;
  if (rates.memory > 0 && rates.vector_f32 > 0) return seconds_of(layer.again, rates, compute);
  return forward * static_cast<double>(layer.again.bytes_moved) /
         static_cast<double>(std::max<Bytes>(layer.forward.bytes_moved, 1));
}

LayerSeconds carried_over(const LayerSeconds& seconds,
                          const LayerProfile& at,
                          const LayerProfile& wanted) {
  const auto factor = [](const OpCount& from, const OpCount& to) {
    if (from.matmul_flops > 0) return to.matmul_flops / from.matmul_flops;
    if (from.bytes_moved == 0) return 1.0;
    return static_cast<double>(to.bytes_moved) / static_cast<double>(from.bytes_moved);
  };
  return {seconds.forward * factor(at.forward, wanted.forward),
          seconds.backward_input * factor(at.backward_input, wanted.backward_input),
          seconds.backward_weight * factor(at.backward_weight, wanted.backward_weight),
          seconds.norm * factor(at.norm, wanted.norm),
          seconds.update * factor(at.update, wanted.update)};
}

LayerSeconds seconds_at(const SecondsBySize& known, std::uint32_t microbatch_size) {
  EXPECTS(!known.empty());
  const auto above = known.lower_bound(microbatch_size);
  if (above != known.end() && above->first == microbatch_size) return above->second;
  if (above == known.begin() || above == known.end()) {
    const auto& [size, at_end] = above == known.end() ? *known.rbegin() : *above;
    const double factor = static_cast<double>(microbatch_size) / size;
    return {at_end.forward * factor, at_end.backward_input * factor,
            at_end.backward_weight * factor, at_end.norm, at_end.update};
  }
  const auto below = std::prev(above);
  const double share =
      static_cast<double>(microbatch_size - below->first) / (above->first - below->first);
  const auto between = [&](Seconds LayerSeconds::*action) {
    return below->second.*action + share * (above->second.*action - below->second.*action);
  };
  return {between(&LayerSeconds::forward), between(&LayerSeconds::backward_input),
          between(&LayerSeconds::backward_weight), between(&LayerSeconds::norm),
          between(&LayerSeconds::update)};
}

}  // namespace troupe
