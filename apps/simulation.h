/// What `troupe simulate` plays: a schedule on the devices of a plan, with its costs, and what came
/// of it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/launch.h"
#include "actors/run_spec.h"
#include "planner/idle.h"
#include "planner/plan.h"
#include "planner/what_if.h"

namespace troupe {

/// One schedule, ready to be played.
struct SimulationCase {
  std::string source;  ///< the file it comes from
  std::string schedule_name;
  ClusterSpec cluster;  ///< from a plan.json: names and memory alone
  StepShape shape;
  std::vector<StagePlan> stages;
  Schedule schedule;
  std::vector<MemoryPlan> memory;  ///< by device
  /// Seconds of an action where links are as in the first argument.
  std::function<Result<ActionSeconds>(const WhatIf&)> seconds;
  std::uint32_t updates = 1;  ///< that the schedule holds (1f1b-2bw)
  std::vector<std::string> notes;
};

/// One of several cases that cannot be played, or not be planned.
struct RefusedCase {
  std::string source, schedule;
  Error why;
};

/// A source of cases: a configuration, planned once, or a plan.json.
class SimulationSource {
 public:
  /// `profile`: of the model at the plan's shape. `note`: of every case, if not empty.
  static SimulationSource from_planned(const std::string& name,
                                       const RunSpec& spec,
                                       PlannedRun planned,
                                       ModelProfile profile,
                                       const std::string& note);
  static Result<SimulationSource> from_plan_json(const std::string& name, const std::string& text);

  const ClusterSpec& cluster() const { return cluster_; }
  /// A schedule by name, that of the plan where it is empty. Trained kinds are planned anew for the
  /// same devices; families keep the plan's devices (planner/family_placement.h). Errors:
  /// does_not_fit of a trained kind; an unknown name; a family without that shape; another schedule
  /// than its own for a plan.json, which has no other times.
  Result<SimulationCase> schedule(const std::string& name) const;
  /// The second best assignment of layers to devices that the search found, if there is one.
  std::optional<SimulationCase> runner_up() const;

 private:
  SimulationCase case_of(const Plan& plan) const;

  std::string name_;
  std::vector<std::string> notes_;       ///< of every case
  std::shared_ptr<const RunSpec> spec_;  ///< null: from a plan.json
  Plan plan_;
  ClusterSpec cluster_;
  ModelProfile profile_;
};

struct SimulatedStep {
  PlayedStep played;
  Seconds seconds = 0;      ///< of one update; meaningless where it hangs
  Seconds undisturbed = 0;  ///< the same without what-ifs
  std::vector<DeviceUse> use;
  double bubble = 0;
  Seconds exposed = 0;  ///< mean over the devices that have work
  std::vector<std::string> hang;
};
Result<SimulatedStep> simulate_case(const SimulationCase& one, const WhatIf& what_if);

/// Error invalid_input: no schedule has this name; says which is nearest and which there are.
Status check_schedule_name(const std::string& name);

/// Devices over their memory, as `plan` would refuse them; empty: it fits.
std::string shortfall_text(const SimulationCase& one);

}  // namespace troupe
