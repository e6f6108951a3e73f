/// What a change of the cluster would buy, by planning again with it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/strategies.h"

namespace troupe {

struct PlanChange {
  std::string change;           ///< "1 GiB more on t4"
  std::optional<Seconds> step;  ///< of the plan with the change; none: it fits no more
};

/// Why the step takes as long as it does.
struct PlanReasons {
  DeviceId busiest;  ///< computes longest
  Seconds busy = 0;
  DeviceId fullest;  ///< the largest share of its memory
  double share = 0;
  /// More memory on the fullest device shortens the step: memory binds, else the busiest device's
  /// compute.
  bool memory_binds = false;
  std::vector<PlanChange> changes;
};

/// Plans again by the same strategy with 1 GiB more on the fullest device, the same on the busiest
/// where that is another one, on hosts whose memory is in use, and one more device of each kind
/// beside the first of its kind. As slow as so many plans. `outcome` is what its strategy answered
/// to the request; not a refusal.
PlanReasons reasons_of(const StrategyOutcome& outcome, const PlanRequest& request);

}  // namespace troupe
