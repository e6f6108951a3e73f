#include "planner/device_kinds.h"

#include <algorithm>
#include <tuple>

#include "planner/tier_share.h"

namespace troupe {
namespace {

bool alike(const DeviceSpec& a, const DeviceSpec& b) {
  const auto rates = [](const DeviceRates& r) {
    return std::tie(r.matmul_f32, r.matmul_bf16, r.vector_f32, r.memory, r.launch,
                    r.action_overhead);
  };
  const auto seconds = [](const LayerSeconds& s) {
    return std::tie(s.forward, s.backward_input, s.backward_weight, s.norm, s.update);
  };
  return a.memory == b.memory && rates(a.rates) == rates(b.rates) &&
         std::equal(a.measured.begin(), a.measured.end(), b.measured.begin(), b.measured.end(),
                    [&](const auto& x, const auto& y) {
                      return x.first == y.first && seconds(x.second) == seconds(y.second);
                    });
}

}  // namespace

std::vector<std::uint32_t> device_kinds(const ClusterSpec& cluster) {
  std::vector<std::uint32_t> kinds;
  std::vector<std::uint32_t> examples;
  const std::vector<TierShare> shares = tier_shares(cluster);
  for (std::uint32_t d = 0; d < cluster.devices.size(); ++d) {
    std::uint32_t kind = 0;
    const auto same = [&](std::uint32_t other) {
      return alike(cluster.devices[other], cluster.devices[d]) && shares[other] == shares[d];
    };
    while (kind < examples.size() && !same(examples[kind])) ++kind;
    if (kind == examples.size()) examples.push_back(d);
    kinds.push_back(kind);
  }
  return kinds;
}

}  // namespace troupe
