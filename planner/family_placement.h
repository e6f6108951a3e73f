/// A published schedule on the devices of a plan: which layers each of its stages holds, so that a
/// family that is only simulated can stand beside what is trained.
#pragma once

#include <vector>

#include "planner/plan.h"
#include "planner/schedule_families.h"
#include "planner/simulate.h"

namespace troupe {

/// One step (of `updates` updates) of a family. Devices of `schedule` are the cluster's.
struct FamilyStep {
  Schedule schedule;
  std::vector<StagePlan> stages;   ///< by StageId; both chains of a bidirectional family
  std::vector<MemoryPlan> memory;  ///< by device
  std::uint32_t updates = 1;       ///< 1f1b-2bw: that follow each other without a flush
  std::vector<std::string> notes;  ///< what the figures leave out
};

/// Puts a family on the plan's devices in the plan's order. A device keeps the number of layers
/// that the plan gives it, spread over its stages, where each gets at least one; else layers are
/// spread evenly. From there a layer at a time moves over the border of two stages as long as
/// that brings devices under their memory, or shortens the simulated step. Transfer slots are the
/// plan's, doubled as long as the family's order would deadlock with so few. Under 1f1b-2bw the
/// devices hold every version of their weights. Errors: a shape that the family does not have
/// (schedule_families.h); fewer layers than stages.
Result<FamilyStep> place_family(ScheduleFamily family,
                                const Plan& plan,
                                const ClusterSpec& cluster,
                                const ModelProfile& profile);

/// Costs of a step whose pipelines may run in both directions.
StepCosts family_costs(const std::vector<StagePlan>& stages,
                       const Schedule& schedule,
                       const Plan& plan,
                       const ClusterSpec& cluster,
                       const ModelProfile& profile);

}  // namespace troupe
