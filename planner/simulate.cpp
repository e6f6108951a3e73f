#include "planner/simulate.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>

namespace troupe {
namespace {

constexpr Seconds never = std::numeric_limits<Seconds>::infinity();

/// Calls `span(lane, action, begin, end)` for every action, in order of begin. An action that
/// never ends takes `seconds(lane, action, now)` = infinity: what waits for it does not start.
template <class SecondsOf, class Span>
void play(ScheduleRun& run, const SecondsOf& seconds, const Span& span) {
  using End = std::pair<Seconds, std::size_t>;  // time, lane
  std::priority_queue<End, std::vector<End>, std::greater<>> ends;
  const auto start = [&](std::size_t lane, Seconds now) {
    ScheduleCursor& cursor = run.cursor(lane);
    const auto action = cursor.next_ready();
    if (!action) return;
    cursor.start_next();
    const Seconds end = now + seconds(lane, *action, now);
    if (!(end < never)) return;
    span(lane, *action, now, end);
    ends.emplace(end, lane);
  };
  for (std::size_t lane = 0; lane < run.lane_count(); ++lane) start(lane, 0);
  while (!ends.empty()) {
    const auto [now, lane] = ends.top();
    ends.pop();
    for (const std::size_t told : run.finish(lane)) start(told, now);
  }
}

}  // namespace

Seconds StepCosts::arithmetic(const Action& action) const {
  const LayerSeconds& stage = stages[action.stage.index()];
  switch (action.op) {
    case Op::forward: return stage.forward;
    case Op::backward: return stage.backward_input + stage.backward_weight;
    case Op::backward_input: return stage.backward_input;
    case Op::backward_weight: return stage.backward_weight;
    case Op::norm: return stage.norm;
    case Op::update: return stage.update;
    case Op::transfer_forward:
    case Op::transfer_backward:
    case Op::transfer_tied: return 0;
  }
  return 0;
}

Seconds StepCosts::of(const Action& action) const {
  const std::size_t s = action.stage.index();
  if (action.op == Op::transfer_forward) return transfer_forward[s];
  if (action.op == Op::transfer_backward) return transfer_backward[s];
  if (action.op == Op::transfer_tied) return transfer_tied[s];
  return arithmetic(action) + overhead[s];
}

PlayedStep play_step(const Schedule& schedule, const LaneSeconds& seconds) {
  ScheduleRun run(schedule);
  PlayedStep step;
  play(run, seconds, [&](std::size_t lane, const Action& action, Seconds begin, Seconds end) {
    step.timeline.spans.push_back({action, run.lane_name(lane), begin, end});
  });
  sort_spans(step.timeline);
  for (std::size_t lane = 0; lane < run.lane_count(); ++lane) {
    const ScheduleCursor& cursor = run.cursor(lane);
    if (cursor.done()) continue;
    const auto running = cursor.running();
    step.stuck.push_back({lane, running ? *running : *cursor.head(), running.has_value(),
                          running ? std::vector<Action>{} : cursor.missing()});
  }
  return step;
}

Timeline simulate(const Schedule& schedule, const ActionSeconds& seconds) {
  PlayedStep step = play_step(
      schedule, [&](std::size_t, const Action& action, Seconds) { return seconds(action); });
  EXPECTS(step.ended());
  return std::move(step.timeline);
}

Timeline simulate(const Schedule& schedule, const StepCosts& costs) {
  return simulate(schedule, [&](const Action& action) { return costs.of(action); });
}

Seconds simulated_seconds(const Schedule& schedule, const StepCosts& costs) {
  ScheduleRun run(schedule);
  return simulated_seconds(run, costs);
}

Seconds simulated_seconds(ScheduleRun& run, const StepCosts& costs) {
  run.reset();
  Seconds last = 0;
  play(
      run, [&](std::size_t, const Action& action, Seconds) { return costs.of(action); },
      [&](std::size_t, const Action&, Seconds, Seconds end) { last = std::max(last, end); });
  EXPECTS(run.done());
  return last;
}

}  // namespace troupe
