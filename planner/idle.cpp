#include "planner/idle.h"

#include <algorithm>
#include <numeric>

#include "planner/prerequisites.h"

namespace troupe {
namespace {

constexpr std::array<std::string_view, idle_reason_count> reason_names{
    "fill", "stage before", "stage after", "link", "drain", "runtime", "nothing to do", "hang"};

bool is_transfer(Op op) {
  return op == Op::transfer_forward || op == Op::transfer_backward || op == Op::transfer_tied;
}

/// Spans by action, and what stands before each action in its lane.
class PlayedLanes {
 public:
  PlayedLanes(const Schedule& schedule, const Timeline& timeline)
      : schedule_(schedule),
        index_(schedule.stages),
        spans_(index_.size(), nullptr),
        before_(index_.size(), nullptr) {
    for (const Span& span : timeline.spans) spans_.at(index_.of(span.action)) = &span;
    for (const auto& lane : schedule.devices) link_up(lane);
    for (const LinkLane& link : schedule.links) link_up(link.actions);
  }

  /// Null: it did not end.
  const Span* span(const Action& action) const { return spans_[index_.of(action)]; }

  /// The prerequisite or the action before it in its lane that ended last; null: there is none.
  const Span* binding(const Action& action) const {
    const Span* last = nullptr;
    const auto offer = [&](const Action& candidate) {
      const Span* one = span(candidate);
      if (one != nullptr && (last == nullptr || one->end > last->end)) last = one;
      return true;
    };
    for_each_prerequisite(action, schedule_.stages, schedule_.split_backward, offer);
    if (const Action* previous = before_[index_.of(action)]) offer(*previous);
    return last;
  }

 private:
  void link_up(const std::vector<Action>& lane) {
    for (std::size_t i = 1; i < lane.size(); ++i) before_[index_.of(lane[i])] = &lane[i - 1];
  }

  const Schedule& schedule_;
  ActionIndex index_;
  std::vector<const Span*> spans_;
  std::vector<const Action*> before_;
};

/// What was at work in a gap, along the chain that ends where `action` starts.
struct Gap {
  Seconds link = 0, compute = 0, runtime = 0;
  const Span* waited_for = nullptr;  ///< what ended last before `action`
};

Gap explain(const PlayedLanes& lanes, const Action& action, Seconds from, Seconds to) {
  Gap gap;
  const Action* current = &action;
  Seconds at = to;
  while (at > from) {
    const Span* span = lanes.binding(*current);
    const Seconds end = span == nullptr ? from : std::max(from, span->end);
    if (end < at) gap.runtime += at - end;
    at = std::min(at, end);
    if (at <= from) break;
    if (gap.waited_for == nullptr) gap.waited_for = span;
    // Clocks of two processes may differ: what is waited for began at the latest when it ended.
    const Seconds begin = std::min(at, std::max(from, span->begin));
    (is_transfer(span->action.op) ? gap.link : gap.compute) += at - begin;
    at = begin;
    current = &span->action;
  }
  return gap;
}

/// F waits for what comes from before, B for what comes from after, or, with no buffer for its own
/// gradient, for the stage before to take an earlier one.
IdleReason stage_waited_for(const Action& action, const Gap& gap) {
  if (action.op == Op::forward) return IdleReason::stage_before;
  const bool own = gap.waited_for != nullptr && gap.waited_for->action.stage <= action.stage;
  return own ? IdleReason::stage_before : IdleReason::stage_after;
}

void add_gap(DeviceUse& use, const PlayedLanes& lanes, const Action& action, Seconds from) {
  const Seconds to = lanes.span(action)->begin;
  if (to <= from) return;
  const auto add = [&](IdleReason reason, Seconds seconds) {
    use.idle[static_cast<std::size_t>(reason)] += seconds;
  };
  const Gap gap = explain(lanes, action, from, to);
  use.exposed += gap.link;
  if (from == 0 && use.busy == 0) return add(IdleReason::fill, to - from);
  if (action.op == Op::norm || action.op == Op::update) return add(IdleReason::drain, to - from);
  add(stage_waited_for(action, gap), gap.compute);
  add(IdleReason::link, gap.link);
  add(IdleReason::runtime, gap.runtime);
}

}  // namespace

std::string_view to_string(IdleReason reason) {
  return reason_names[static_cast<std::size_t>(reason)];
}

Seconds DeviceUse::idle_sum() const {
  return std::accumulate(idle.begin(), idle.end(), Seconds{0});
}

std::vector<DeviceUse> device_use(const Schedule& schedule, const Timeline& timeline) {
  const PlayedLanes lanes(schedule, timeline);
  const Seconds all = timeline.makespan();
  std::vector<DeviceUse> devices;
  for (const auto& lane : schedule.devices) {
    DeviceUse use;
    Seconds now = 0;
    bool ended = true;
    for (const Action& action : lane) {
      const Span* span = lanes.span(action);
      if (span == nullptr) {
        ended = false;
        break;
      }
      add_gap(use, lanes, action, now);
      use.busy += span->end - span->begin;
      now = span->end;
    }
    use.idle[static_cast<std::size_t>(ended ? IdleReason::nothing : IdleReason::hang)] += all - now;
    devices.push_back(use);
  }
  return devices;
}

double bubble_share(const Schedule& schedule, const std::vector<DeviceUse>& use) {
  Seconds idle = 0;
  Seconds all = 0;
  for (std::size_t d = 0; d < use.size(); ++d) {
    if (schedule.devices[d].empty()) continue;
    idle += use[d].idle_sum();
    all += use[d].idle_sum() + use[d].busy;
  }
  return all > 0 ? idle / all : 0;
}

}  // namespace troupe
