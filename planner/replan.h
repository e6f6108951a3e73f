/// What planning again would buy once it is known what drifts: advice, which nobody has to take.
#pragma once

#include <optional>
#include <string>

#include "planner/drift.h"
#include "planner/strategies.h"

namespace troupe {

/// Another plan for a cluster that does not do what the plan in force was told.
struct Replanned {
  std::vector<StagePlan> stages;
  Seconds kept_step = 0;  ///< predicted of the stages in force, with what drifts
  Seconds step = 0;       ///< predicted of `stages`, likewise
  friend bool operator==(const Replanned&, const Replanned&) = default;
};

/// Plans that are faster by less are not worth stopping a run for.
inline constexpr double worthwhile_gain = 0.02;

/// The cluster as the drift shows it: the device's arithmetic (or optimizer) or the link takes as
/// many times its planned seconds as the term did. None: the drift is overhead, which has no one
/// place, or nothing was planned for the term.
std::optional<ClusterSpec> cluster_with(const Drift& drift, const ClusterSpec& cluster);

/// The best plan for cluster_with(drift), pins left aside. `plan` is what make_plan answered to
/// the request. None: there is no such cluster, or no plan is faster by `worthwhile_gain`.
std::optional<Replanned> replan(const Plan& plan, const PlanRequest& request, const Drift& drift);

/// "another plan would take 9.1 ms a step instead of 14 ms: layers 0-2 on v100, 3-7 on t4".
std::string to_text(const Replanned& other, const ClusterSpec& cluster);

}  // namespace troupe
