/// Virtual workers: groups of unlike devices, each a pipeline over the whole model, that train the
/// same model side by side on shares of the batch that fit their speed.
///
/// Park et al. 2020 ("HetPipe", USENIX ATC'20, arXiv:2005.14038): sections 3 (workers, N_m
/// microbatches in flight, waves), 5 (waves and bounded staleness) and 6 (allocation policies).
/// Ours differs in two things: a worker's devices may stand in any order, and may be left out.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "planner/worker_split.h"

namespace troupe {

enum class WorkerAllocation : std::uint8_t {
  node_partition,       ///< NP: a worker is a node
  equal_distribution,   ///< ED: every worker has the same number of each kind
  hybrid_distribution,  ///< HD: the fastest kind with the slowest, the second with the last but one
  single                ///< one worker of all devices
};
inline constexpr std::size_t worker_allocation_count = 4;
std::string_view to_string(WorkerAllocation allocation);  ///< "np", "ed", "hd", "single"
Result<WorkerAllocation> parse_worker_allocation(std::string_view text);

/// Devices of each worker, by index, ascending.
/// ED: as many workers as the greatest common divisor of the kinds' counts. HD: kinds by the time
/// they need for the model; a pair of kinds makes as many workers as it has nodes, or the largest
/// number below that divides the count of both; of an odd number of kinds the middle one stands
/// alone. Errors: as plan_workers, for the cluster and the costs.
Result<std::vector<std::vector<std::uint32_t>>> allocate_workers(const WorkerCluster& cluster,
                                                                 const WorkerCosts& costs,
                                                                 WorkerAllocation allocation);

struct WorkerPlan {
  WorkerAllocation allocation = WorkerAllocation::node_partition;
  std::vector<VirtualWorker> workers;
  /// Of pushing and pulling all gradients once. Layers that every worker keeps on the same node
  /// stay on it; of others all but one node's part crosses the network, which the devices of a node
  /// share.
  Seconds synchronise = 0;
  /// Of a step that all workers end together: the slowest worker's pipeline with its share, then
  /// the exchange.
  Seconds step = 0;
  /// Microbatches a second where a worker exchanges once a wave of its microbatches in flight
  /// beside computing the next, as HetPipe does: sum over workers of
  /// in_flight / max(in_flight period, synchronise).
  double microbatches_per_second = 0;
};

/// Allocation, stages, microbatches in flight (the count from 1 to the stages that a worker may
/// have with the shortest period: HetPipe's N_m, here of each worker; of many stages, 24 counts are
/// tried) and shares. A step of `microbatches` is shared out so that the last worker finishes
/// soonest. Errors: as check_workers; invalid_input for no microbatches; does_not_fit where a
/// worker cannot hold the model under this allocation.
Result<WorkerPlan> plan_workers(const WorkerCluster& cluster,
                                const WorkerCosts& costs,
                                WorkerAllocation allocation,
                                std::uint32_t microbatches);

/// The allocation with the shortest step. Errors: as plan_workers, of the last one tried where none
/// fits.
Result<WorkerPlan> best_workers(const WorkerCluster& cluster,
                                const WorkerCosts& costs,
                                std::uint32_t microbatches);

/// The cluster as workers see it: kinds are those of device_kinds.
WorkerCluster worker_cluster(const ClusterSpec& cluster);

/// Of pushing and pulling all gradients once, as `WorkerPlan::synchronise`. Of the arguments, the
/// devices' nodes, the links, the layers' gradients and the workers' stages count.
Seconds exchange_seconds(const WorkerCluster& cluster,
                         const WorkerCosts& costs,
                         const std::vector<VirtualWorker>& workers);

/// Shares of `total` microbatches for which max over workers of fill + share x period is least.
/// A worker without a share does not count. Promise: as many fills as periods, at least one.
std::vector<std::uint32_t> share_microbatches(std::uint32_t total,
                                              const std::vector<Seconds>& fills,
                                              const std::vector<Seconds>& periods);

}  // namespace troupe
