#include "planner/tier_share.h"

#include <tuple>

namespace troupe {

bool TierShare::has(StateTier tier) const {
  if (tier == StateTier::device) return true;
  if (tier == StateTier::host) return host > 0;
  return disk > 0 && host > 0;
}

std::vector<TierShare> tier_shares(const ClusterSpec& cluster) {
  std::vector<std::uint64_t> sharing(cluster.nodes.size());
  for (const DeviceSpec& device : cluster.devices) ++sharing.at(device.node.index());
  std::vector<TierShare> shares;
  for (const DeviceSpec& device : cluster.devices) {
    const NodeSpec& node = cluster.nodes[device.node.index()];
    const std::uint64_t count = sharing[device.node.index()];
    const auto part = static_cast<double>(count);
    shares.push_back({device.host_link, node.host.memory / count, node.disk.space / count,
                      node.host.memory_rate / part, node.disk.read / part, node.disk.write / part});
  }
  return shares;
}

bool operator==(const TierShare& a, const TierShare& b) {
  const auto parts = [](const TierShare& s) {
    return std::tie(s.link.latency, s.link.bandwidth, s.host, s.disk, s.host_rate, s.disk_read,
                    s.disk_write);
  };
  return parts(a) == parts(b);
}

}  // namespace troupe
