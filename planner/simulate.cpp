#include "planner/simulate.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace troupe {
namespace {

/// Calls `span(lane, action, begin, end)` for every action, in order of begin.
template <class SecondsOf, class Span>
void play(ScheduleRun& run, const SecondsOf& seconds, const Span& span) {
  using End = std::pair<Seconds, std::size_t>;  // time, lane
  std::priority_queue<End, std::vector<End>, std::greater<>> ends;
  const auto start = [&](std::size_t lane, Seconds now) {
    ScheduleCursor& cursor = run.cursor(lane);
    const auto action = cursor.next_ready();
    if (!action) return;
    cursor.start_next();
    const Seconds end = now + seconds(*action);
    span(lane, *action, now, end);
    ends.emplace(end, lane);
  };
  for (std::size_t lane = 0; lane < run.lane_count(); ++lane) start(lane, 0);
  while (!ends.empty()) {
    const auto [now, lane] = ends.top();
    ends.pop();
    for (const std::size_t told : run.finish(lane)) start(told, now);
  }
  EXPECTS(run.done());
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

Timeline simulate(const Schedule& schedule, const ActionSeconds& seconds) {
  ScheduleRun run(schedule);
  Timeline timeline;
  play(run, seconds, [&](std::size_t lane, const Action& action, Seconds begin, Seconds end) {
    timeline.spans.push_back({action, run.lane_name(lane), begin, end});
  });
  sort_spans(timeline);
  return timeline;
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
      run, [&](const Action& action) { return costs.of(action); },
      [&](std::size_t, const Action&, Seconds, Seconds end) { last = std::max(last, end); });
  return last;
}

}  // namespace troupe
