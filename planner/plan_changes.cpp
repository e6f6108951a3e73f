#include "planner/plan_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "planner/device_kinds.h"

namespace troupe {
namespace {

/// Changes of the step below this share are the search's own noise.
constexpr double noticed = 1e-6;

std::optional<Seconds> step_with(const ClusterSpec& cluster,
                                 Strategy strategy,
                                 const PlanRequest& request) {
  const StrategyOutcome outcome = run_strategy(
      strategy, {request.model, cluster, request.profile, request.options, request.profile_at});
  if (outcome.refused) return std::nullopt;
  return outcome.step;
}

PlanChange with_memory(DeviceId device, Strategy strategy, const PlanRequest& request) {
  ClusterSpec more = request.cluster;
  DeviceSpec& changed = more.devices[device.index()];
  changed.memory += 1_GiB;
  return {fmt::format("1 GiB more on {}", changed.name), step_with(more, strategy, request)};
}

/// Nodes whose host memory holds states.
std::set<NodeId> host_nodes(const StrategyOutcome& outcome, const ClusterSpec& cluster) {
  std::set<NodeId> nodes;
  if (!outcome.joint) return nodes;
  for (const JointReplica& replica : outcome.joint->replicas)
    for (std::size_t s = 0; s < replica.pipeline.stages.size(); ++s)
      if (replica.pipeline.points[s].host > 0)
        nodes.insert(cluster.devices.at(replica.pipeline.stages[s].device.index()).node);
  return nodes;
}

PlanChange with_host_memory(NodeId node, Strategy strategy, const PlanRequest& request) {
  ClusterSpec more = request.cluster;
  NodeSpec& changed = more.nodes[node.index()];
  changed.host.memory += 1_GiB;
  return {fmt::format("1 GiB more host memory on {}", changed.name),
          step_with(more, strategy, request)};
}

/// One more device like `example`, on its node; links as between any others.
PlanChange with_device(const DeviceSpec& example, Strategy strategy, const PlanRequest& request) {
  ClusterSpec more = request.cluster;
  more.devices.push_back(example);
  more.devices.back().name += "+1";
  return {fmt::format("one more device like {}", example.name), step_with(more, strategy, request)};
}

}  // namespace

PlanReasons reasons_of(const StrategyOutcome& outcome, const PlanRequest& request) {
  EXPECTS(!outcome.refused);
  const Strategy strategy = outcome.strategy;
  const auto& devices = request.cluster.devices;
  PlanReasons reasons;
  reasons.busiest = outcome.slowest;
  reasons.busy = outcome.slowest_busy;
  reasons.fullest = outcome.fullest;
  reasons.share = outcome.memory_share;
  reasons.changes.push_back(with_memory(reasons.fullest, strategy, request));
  const auto& first = reasons.changes.front().step;
  reasons.memory_binds = first && *first < outcome.step * (1 - noticed);
  if (reasons.busiest != reasons.fullest)
    reasons.changes.push_back(with_memory(reasons.busiest, strategy, request));
  for (const NodeId node : host_nodes(outcome, request.cluster))
    reasons.changes.push_back(with_host_memory(node, strategy, request));
  if (strategy == Strategy::configured && !request.options.pinned.empty())
    return reasons;  // a new device would get nothing
  std::set<std::uint32_t> seen;
  const auto kinds = device_kinds(request.cluster);
  for (std::uint32_t d = 0; d < devices.size(); ++d)
    if (seen.insert(kinds[d]).second)
      reasons.changes.push_back(with_device(devices[d], strategy, request));
  return reasons;
}

}  // namespace troupe
