/// Layers -> contiguous stages -> devices, in an order that is chosen too: the search behind
/// make_plan. Candidates are judged by their simulated step time, within every device's memory.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

#include "planner/plan.h"

namespace troupe {

/// How the search ended.
struct Partition {
  std::vector<StagePlan> stages;
  Seconds step = 0;
  /// The best one found with another assignment of layers to devices, if there is any.
  std::vector<StagePlan> runner_up;
  Seconds runner_up_step = 0;
  bool exact = false;          ///< every candidate was simulated or bounded away
  std::size_t candidates = 0;  ///< that fit into memory
  std::size_t simulated = 0;
};

/// The device that is furthest over its memory under the arrangement that comes nearest to fitting.
struct Shortfall {
  DeviceId device;
  Bytes needed = 0;
  std::vector<StagePlan> stages;
};

struct PartitionSearch {
  std::optional<Partition> found;
  Shortfall shortfall;    ///< where nothing was found
  bool complete = false;  ///< no candidate was left out but those that are too slow or do not fit
};

/// Up to this many candidates are all considered, so that the result is the optimum; beyond, the
/// bottleneck is minimised by dynamic programming over promising orders of the devices, and the
/// best are improved by moving cuts and devices.
inline constexpr std::size_t exact_candidate_limit = 20'000;

/// Promise: the model is valid, there is at least one device and one microbatch, `pinned` is empty.
/// Candidates that must take longer than `at_most` are left out, so that nothing may be found.
PartitionSearch search_partition(const ModelSpec& model,
                                 const ClusterSpec& cluster,
                                 const ModelProfile& profile,
                                 const PlanOptions& options,
                                 Seconds at_most = std::numeric_limits<Seconds>::infinity());

/// The plan of what a search of the same request found, with the notes that say how.
Result<Plan> plan_of(const Partition& found,
                     const ModelSpec& model,
                     const ClusterSpec& cluster,
                     const ModelProfile& profile,
                     const PlanOptions& options);

/// The stage map of given stages.
StageMap stage_map_of(const std::vector<StagePlan>& stages,
                      const ClusterSpec& cluster,
                      const ModelSpec& model,
                      const PlanOptions& options);

}  // namespace troupe
