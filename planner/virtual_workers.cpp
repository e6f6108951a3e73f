#include "planner/virtual_workers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "planner/device_kinds.h"
#include "planner/printable.h"
#include "planner/step_costs.h"

namespace troupe {
namespace {

constexpr std::array<std::string_view, worker_allocation_count> allocation_names{"np", "ed", "hd",
                                                                                 "single"};

Error invalid(std::string text) {
  return {ErrorCode::invalid_input, std::move(text)};
}

/// Nodes of one kind's devices, and the devices by node.
using KindDevices = std::vector<std::vector<std::uint32_t>>;  ///< by kind

KindDevices devices_by_kind(const WorkerCluster& cluster, const WorkerCosts& costs) {
  KindDevices kinds(costs.seconds.size());
  for (std::uint32_t i = 0; i < cluster.devices.size(); ++i)
    kinds[cluster.devices[i].kind].push_back(i);
  // The fastest first; kinds that are not there drop out.
  std::vector<std::size_t> order;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind)
    if (!kinds[kind].empty()) order.push_back(kind);
  const auto whole = [&](std::size_t kind) {
    return std::accumulate(costs.seconds[kind].begin(), costs.seconds[kind].end(), 0.0);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return whole(a) < whole(b); });
  KindDevices sorted;
  for (const std::size_t kind : order) sorted.push_back(std::move(kinds[kind]));
  return sorted;
}

/// Deals the devices of these kinds to so many workers.
void deal(const KindDevices& kinds,
          std::size_t workers,
          std::vector<std::vector<std::uint32_t>>& out) {
  const std::size_t begin = out.size();
  out.resize(begin + workers);
  for (const auto& devices : kinds) {
    const std::size_t each = devices.size() / workers;
    for (std::size_t i = 0; i < devices.size(); ++i) out[begin + i / each].push_back(devices[i]);
  }
  for (std::size_t w = begin; w < out.size(); ++w) std::sort(out[w].begin(), out[w].end());
}

std::size_t node_count(const WorkerCluster& cluster, const KindDevices& kinds) {
  std::set<NodeId> nodes;
  for (const auto& devices : kinds)
    for (const std::uint32_t device : devices) nodes.insert(cluster.devices[device].node);
  return nodes.size();
}

std::size_t common_divisor(const KindDevices& kinds) {
  std::size_t divisor = 0;
  for (const auto& devices : kinds) divisor = std::gcd(divisor, devices.size());
  return divisor;
}

/// The worker with the shortest period over its microbatches in flight. More in flight take more
/// memory, so no period is below the slowest stage with one; as many as there are stages hide the
/// way through all of them.
Result<VirtualWorker> fastest_worker(const WorkerCluster& cluster,
                                     const WorkerCosts& costs,
                                     const std::vector<std::uint32_t>& members) {
  constexpr std::uint32_t most_counts = 24;
  auto best = split_worker(cluster, costs, members, 1);
  if (!best) return best;
  const Seconds least = best->slowest;
  const auto most = static_cast<std::uint32_t>(std::min(members.size(), costs.layers.size()));
  const std::uint32_t by = (most + most_counts - 1) / most_counts;
  for (std::uint32_t in_flight = most; in_flight > 1; in_flight -= std::min(by, in_flight - 1)) {
    auto worker = split_worker(cluster, costs, members, in_flight);
    if (worker && worker->period() < best->period()) best = std::move(worker);
    if (best->period() <= least) break;
  }
  return best;
}

}  // namespace

std::string_view to_string(WorkerAllocation allocation) {
  return allocation_names[static_cast<std::size_t>(allocation)];
}

Result<WorkerAllocation> parse_worker_allocation(std::string_view text) {
  for (std::size_t i = 0; i < worker_allocation_count; ++i)
    if (text == allocation_names[i]) return static_cast<WorkerAllocation>(i);
  return invalid(fmt::format("\"{}\" is no allocation of virtual workers; there are {}",
                             printable(std::string(text.substr(0, 40))),
                             fmt::join(allocation_names, ", ")));
}

Result<std::vector<std::vector<std::uint32_t>>> allocate_workers(const WorkerCluster& cluster,
                                                                 const WorkerCosts& costs,
                                                                 WorkerAllocation allocation) {
  TROUPE_TRY(check_workers(cluster, costs));
  const KindDevices kinds = devices_by_kind(cluster, costs);
  std::vector<std::vector<std::uint32_t>> out;
  switch (allocation) {
    case WorkerAllocation::node_partition: {
      std::map<NodeId, std::vector<std::uint32_t>> nodes;
      for (std::uint32_t i = 0; i < cluster.devices.size(); ++i)
        nodes[cluster.devices[i].node].push_back(i);
      for (auto& [node, devices] : nodes) out.push_back(std::move(devices));
      break;
    }
    case WorkerAllocation::equal_distribution: deal(kinds, common_divisor(kinds), out); break;
    case WorkerAllocation::hybrid_distribution:
      for (std::size_t i = 0; 2 * i < kinds.size(); ++i) {
        KindDevices pair{kinds[i]};
        if (kinds.size() - 1 - i != i) pair.push_back(kinds[kinds.size() - 1 - i]);
        const std::size_t divisor = common_divisor(pair);
        std::size_t workers = std::min(node_count(cluster, pair), divisor);
        while (divisor % workers != 0) --workers;
        deal(pair, workers, out);
      }
      break;
    case WorkerAllocation::single: deal(kinds, 1, out); break;
  }
  return out;
}

Seconds exchange_seconds(const WorkerCluster& cluster,
                         const WorkerCosts& costs,
                         const std::vector<VirtualWorker>& workers) {
  if (workers.size() < 2) return 0;
  std::vector<std::set<NodeId>> holders(costs.layers.size());
  std::set<NodeId> nodes;
  const auto each_layer = [&](const auto& visit) {
    for (const VirtualWorker& worker : workers)
      for (const WorkerStage& stage : worker.stages)
        for (std::uint32_t layer = stage.first; layer < stage.last; ++layer)
          visit(stage.device, layer);
  };
  each_layer([&](std::uint32_t device, std::uint32_t layer) {
    holders[layer].insert(cluster.devices[device].node);
    nodes.insert(cluster.devices[device].node);
  });
  const double remote = 1 - 1 / static_cast<double>(nodes.size());
  std::map<NodeId, double> network;      // bytes
  std::map<std::uint32_t, double> near;  // by device
  each_layer([&](std::uint32_t device, std::uint32_t layer) {
    const double bytes = 2 * costs.layers[layer].gradient_bytes;
    if (holders[layer].size() == 1) {
      near[device] += bytes;
    } else {
      network[cluster.devices[device].node] += remote * bytes;
    }
  });
  Seconds longest = 0;
  for (const auto& [node, bytes] : network)
    longest = std::max(longest, transfer_seconds(cluster.between_nodes, bytes));
  for (const auto& [device, bytes] : near)
    longest = std::max(longest, transfer_seconds(cluster.within_node, bytes));
  return longest;
}

WorkerCluster worker_cluster(const ClusterSpec& cluster) {
  WorkerCluster made;
  made.within_node = cluster.same_process;
  // Nodes without a process of their own are all in one.
  const bool apart = std::any_of(cluster.nodes.begin(), cluster.nodes.end(),
                                 [](const NodeSpec& node) { return node.own_process; });
  made.between_nodes = apart ? cluster.between_processes : cluster.same_process;
  const auto kinds = device_kinds(cluster);
  for (std::size_t d = 0; d < kinds.size(); ++d)
    made.devices.push_back(
        {kinds[d], cluster.devices[d].node, static_cast<double>(cluster.devices[d].memory)});
  return made;
}

std::vector<std::uint32_t> share_microbatches(std::uint32_t total,
                                              const std::vector<Seconds>& fills,
                                              const std::vector<Seconds>& periods) {
  EXPECTS(!periods.empty() && fills.size() == periods.size());
  std::vector<std::uint32_t> shares(periods.size());
  for (std::uint32_t i = 0; i < total; ++i) {
    std::size_t first = 0;
    const auto end = [&](std::size_t w) { return fills[w] + (shares[w] + 1) * periods[w]; };
    for (std::size_t w = 1; w < periods.size(); ++w)
      if (end(w) < end(first)) first = w;
    ++shares[first];
  }
  return shares;
}

Result<WorkerPlan> plan_workers(const WorkerCluster& cluster,
                                const WorkerCosts& costs,
                                WorkerAllocation allocation,
                                std::uint32_t microbatches) {
  if (microbatches == 0) return invalid("a step has no microbatches");
  auto groups = allocate_workers(cluster, costs, allocation);
  if (!groups) return groups.error();
  WorkerPlan plan;
  plan.allocation = allocation;
  std::vector<Seconds> fills, periods;
  for (const auto& members : *groups) {
    auto worker = fastest_worker(cluster, costs, members);
    if (!worker) return worker.error();
    periods.push_back(worker->period());
    fills.push_back(worker->round_trip - worker->period());
    plan.workers.push_back(std::move(*worker));
  }
  plan.synchronise = exchange_seconds(cluster, costs, plan.workers);
  const auto shares = share_microbatches(microbatches, fills, periods);
  for (std::size_t w = 0; w < plan.workers.size(); ++w) {
    VirtualWorker& worker = plan.workers[w];
    worker.share = shares[w];
    if (shares[w] > 0) plan.step = std::max(plan.step, fills[w] + shares[w] * periods[w]);
    const Seconds wave = std::max(worker.in_flight * periods[w], plan.synchronise);
    plan.microbatches_per_second += wave > 0 ? worker.in_flight / wave : 0;
  }
  plan.step += plan.synchronise;
  return plan;
}

Result<WorkerPlan> best_workers(const WorkerCluster& cluster,
                                const WorkerCosts& costs,
                                std::uint32_t microbatches) {
  std::optional<WorkerPlan> best;
  Error error;
  for (std::size_t i = 0; i < worker_allocation_count; ++i) {
    auto plan = plan_workers(cluster, costs, static_cast<WorkerAllocation>(i), microbatches);
    if (!plan) {
      error = plan.error();
    } else if (!best || plan->step < best->step) {
      best = std::move(*plan);
    }
  }
  if (!best) return error;
  return std::move(*best);
}

}  // namespace troupe
