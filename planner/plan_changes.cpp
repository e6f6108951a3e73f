#include "planner/plan_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "planner/device_kinds.h"
#include "planner/plan_measures.h"

namespace troupe {
namespace {

/// Changes of the step below this share are the search's own noise.
constexpr double noticed = 1e-6;

std::optional<Seconds> step_with(const ClusterSpec& cluster, const PlanRequest& request) {
  const auto plan = make_plan(request.model, cluster, request.profile, request.options);
  if (!plan) return std::nullopt;
  return plan->predicted_step;
}

PlanChange with_memory(DeviceId device, const PlanRequest& request) {
  ClusterSpec more = request.cluster;
  DeviceSpec& changed = more.devices[device.index()];
  changed.memory += 1_GiB;
  return {fmt::format("1 GiB more on {}", changed.name), step_with(more, request)};
}

/// One more device like `example`, on its node; links as between any others.
PlanChange with_device(const DeviceSpec& example, const PlanRequest& request) {
  ClusterSpec more = request.cluster;
  more.devices.push_back(example);
  more.devices.back().name += "+1";
  return {fmt::format("one more device like {}", example.name), step_with(more, request)};
}

}  // namespace

PlanReasons reasons_of(const Plan& plan, const PlanRequest& request) {
  PlanReasons reasons;
  const std::vector<Seconds> busy = busy_of_devices(plan);
  const auto& devices = request.cluster.devices;
  for (std::uint32_t d = 0; d < devices.size(); ++d) {
    const double share =
        static_cast<double>(plan.memory[d].total()) / static_cast<double>(devices[d].memory);
    if (share > reasons.share) {
      reasons.share = share;
      reasons.fullest = DeviceId{d};
    }
    if (busy[d] > reasons.busy) {
      reasons.busy = busy[d];
      reasons.busiest = DeviceId{d};
    }
  }
  reasons.changes.push_back(with_memory(reasons.fullest, request));
  const auto& first = reasons.changes.front().step;
  reasons.memory_binds = first && *first < plan.predicted_step * (1 - noticed);
  if (reasons.busiest != reasons.fullest)
    reasons.changes.push_back(with_memory(reasons.busiest, request));
  if (!request.options.pinned.empty()) return reasons;  // a new device would get nothing
  std::set<std::uint32_t> seen;
  const auto kinds = device_kinds(request.cluster);
  for (std::uint32_t d = 0; d < devices.size(); ++d)
    if (seen.insert(kinds[d]).second) reasons.changes.push_back(with_device(devices[d], request));
  return reasons;
}

}  // namespace troupe
