/// The step of a layout as values that are simulated and drawn like those of any plan: a schedule
/// over its pipeline stages, the seconds of every action, the bytes of every stage. One device
/// stands for all ranks of a stage, which do the same at the same time.
///
/// step_seconds (planner/architecture_estimate.h) is the closed form of the same step. The two
/// agree within 1 % where stages are equal and sends short. Beyond, the played step is the shorter
/// one: the closed form takes every stage for as full as the fullest, and every send for time in
/// which its device does nothing else.
#pragma once

#include <string>
#include <vector>

#include "planner/architecture_estimate.h"
#include "planner/plan.h"
#include "planner/simulate.h"

namespace troupe {

struct LayoutStep {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  Schedule schedule;              ///< 1F1B, interleaved with chunks > 1
  std::vector<StagePlan> stages;  ///< by StageId; where they divide unevenly, the last have more
  /// Of F and B with their traffic; N is the reduction of gradients and the gathering of parameters
  /// between replicas as far as it shows, U the optimizer.
  StepCosts costs;
  LinkSpec link;                   ///< from one stage to the next
  double boundary = 0;             ///< bytes on it, of one microbatch
  std::vector<StepBytes> bytes;    ///< by device
  std::vector<double> kept;        ///< by StageId: bytes from F to B of one microbatch
  std::vector<std::string> notes;  ///< what an action holds beside what its name says
};

/// Actions and transfers of such a step: what playing it costs.
std::uint64_t action_count(const Layout& layout);

/// Promise: no layout_faults; with chunks > 1 microbatches are a multiple of the stages.
LayoutStep layout_step(const ArchitectureRun& run,
                       const Layout& layout,
                       const Framework& framework,
                       const TrainingCluster& cluster);

}  // namespace troupe
