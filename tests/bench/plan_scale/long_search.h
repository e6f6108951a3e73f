/// A search for pipelines that shares nothing with the planner but the prices of stages: simulated
/// annealing over order, choice of devices and cuts, from random starts. What the planner's own
/// search is compared with, a hundred times longer.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/plan.h"

namespace troupe::bench {

struct LongSearch {
  Seconds step = 0;  ///< of the best pipeline found; infinity: none fits
  std::vector<StagePlan> stages;
  std::size_t tried = 0;
};

/// Anneals for `seconds` of the clock under 1F1B. Half of the rounds start at random, half at
/// `known` where it is not empty.
LongSearch anneal(const ModelSpec& model,
                  const ClusterSpec& cluster,
                  const ModelProfile& profile,
                  const PlanOptions& options,
                  const std::vector<StagePlan>& known,
                  double seconds,
                  std::uint32_t seed);

}  // namespace troupe::bench
