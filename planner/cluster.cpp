#include "planner/cluster.h"

#include "planner/result.h"

namespace troupe {

bool ClusterSpec::crosses_processes(DeviceId from, DeviceId to) const {
  const NodeId a = devices.at(from.index()).node;
  const NodeId b = devices.at(to.index()).node;
  if (a == b) return false;
  // Nodes without a process of their own all live in the process of the run actor.
  return nodes.at(a.index()).own_process || nodes.at(b.index()).own_process;
}

double ClusterSpec::disturbed(DeviceId from, DeviceId to, std::uint64_t step) const {
  double factor = 1;
  for (const Disturbance& one : disturbances)
    if (one.from == from && one.to == to && step >= one.first_step && step <= one.last_step)
      factor *= one.factor;
  return factor;
}

LinkSpec ClusterSpec::link(DeviceId from, DeviceId to) const {
  if (const auto found = overrides.find({from.value, to.value}); found != overrides.end())
    return found->second;
  return crosses_processes(from, to) ? between_processes : same_process;
}

void set_measured(DeviceSpec& device,
                  const std::map<LayerKind, SecondsBySize>& by_size,
                  std::uint32_t microbatch_size) {
  for (const auto& [kind, known] : by_size) {
    device.measured[kind] = seconds_at(known, microbatch_size);
    if (known.size() > 1) device.measured_by_size[kind] = known;
  }
}

std::vector<std::string> device_names(const ClusterSpec& cluster) {
  std::vector<std::string> names;
  for (const DeviceSpec& device : cluster.devices) names.push_back(device.name);
  return names;
}

}  // namespace troupe
