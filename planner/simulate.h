/// Plays a schedule against costs: discrete events over the same cursors that the actors use. A
/// device runs one action at a time, a directed link sends one transfer at a time, both in the
/// order of their lane.
#pragma once

#include <functional>
#include <vector>

#include "planner/cluster.h"
#include "planner/cost.h"
#include "planner/schedule.h"
#include "planner/schedule_cursor.h"
#include "planner/timeline.h"

namespace troupe {

/// Seconds of one action, compute or transfer.
using ActionSeconds = std::function<Seconds(const Action&)>;

/// What the actions of a step cost.
struct StepCosts {
  std::vector<LayerSeconds> stages;        ///< by stage: sums over its layers, arithmetic alone
  std::vector<Seconds> overhead;           ///< by stage: beside the arithmetic of each action
  std::vector<Seconds> transfer_forward;   ///< by stage: XF s
  std::vector<Seconds> transfer_backward;  ///< by stage: XB s
  std::vector<Seconds> transfer_tied;      ///< by stage: XT s, 0 but for the two ends
  /// Arithmetic of a compute action: what an emulated device makes it last.
  Seconds arithmetic(const Action& action) const;
  Seconds of(const Action& action) const;
};

/// Seconds of an action that starts at `now` on a lane (devices by DeviceId, then the schedule's
/// links in order). Infinity: it never ends.
using LaneSeconds = std::function<Seconds(std::size_t lane, const Action& action, Seconds now)>;

/// A lane that did not come to its end.
struct StuckLane {
  std::size_t lane = 0;
  Action action;                ///< the one that never ended, or that never could start
  bool running = false;         ///< it started: this lane is what the others wait for
  std::vector<Action> missing;  ///< what it still waited for
  friend bool operator==(const StuckLane&, const StuckLane&) = default;
};

/// A step that may hang.
struct PlayedStep {
  Timeline timeline;             ///< of the actions that ended
  std::vector<StuckLane> stuck;  ///< in order of lanes; empty: the step ended
  bool ended() const { return stuck.empty(); }
};

/// Plays a step whose actions may last for ever. Promise: the schedule is valid.
PlayedStep play_step(const Schedule& schedule, const LaneSeconds& seconds);

/// The planned timeline of one step from 0. Promise: the schedule is valid, every action ends.
Timeline simulate(const Schedule& schedule, const ActionSeconds& seconds);
Timeline simulate(const Schedule& schedule, const StepCosts& costs);

/// The end of the last action, without keeping spans: what planning asks thousands of times.
Seconds simulated_seconds(const Schedule& schedule, const StepCosts& costs);
/// The same with cursors that are used again and again; resets them first.
Seconds simulated_seconds(ScheduleRun& run, const StepCosts& costs);

}  // namespace troupe
