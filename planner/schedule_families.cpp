#include "planner/schedule_families.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <tuple>

#include "planner/lowering.h"
#include "planner/schedules.h"
#include "planner/zero_bubble_search.h"

namespace troupe {
namespace {

constexpr std::array<std::string_view, schedule_family_count> family_names{
    "1f1b-flush", "1f1b-2bw", "zb-h2",         "zb-1p",   "zb-2p",
    "zb-v",       "chimera",  "breadth-first", "layered", "dualpipe"};

Error refuse(std::string text) {
  return {ErrorCode::invalid_input, std::move(text)};
}

Action act(Op op, std::uint32_t stage, std::uint32_t microbatch) {
  return {op, StageId{stage}, MicrobatchId{microbatch}};
}

Schedule empty_schedule(const StageMap& stages, bool split) {
  Schedule schedule;
  schedule.stages = stages;
  schedule.split_backward = split;
  schedule.devices.resize(stages.device_count);
  return schedule;
}

/// One lane of zb-v, after figure 9 of the paper: device d of p with stages d (down) and
/// 2 p - 1 - d (up). The pattern is written for at least 2 p - 1 microbatches; what a shorter step
/// lacks is left out of it.
class VLane {
 public:
  VLane(std::uint32_t device, std::uint32_t devices, std::uint32_t microbatches)
      : device_(device), devices_(devices), microbatches_(microbatches) {
    stage_[0] = device;
    stage_[1] = 2 * devices - 1 - device;
  }

  std::vector<Action> take() {
    const std::uint32_t all = std::max(2 * devices_ - 1, microbatches_);
    for (std::uint32_t i = 0; i < 2 * (devices_ - device_) - 1; ++i) forward(0);
    for (std::uint32_t i = 0; i < device_; ++i) {
      forward(1);
      forward(0);
    }
    for (std::uint32_t i = 0; i < devices_ - device_; ++i) {
      forward(1);
      backward(1);
    }
    while (forwards_[1] < forwards_[0] || forwards_[0] < all) {
      if (forwards_[0] < all) forward(0);
      backward(0);
      forward(1);
      backward(1);
    }
    for (std::uint32_t i = 0; i < device_; ++i) {
      input(0);
      input(1);
    }
    for (std::uint32_t i = 0; i < devices_ - device_; ++i) {
      input(0);
      weight(0);
    }
    for (const std::size_t chunk : {std::size_t{1}, std::size_t{0}})
      while (weights_[chunk] < inputs_[chunk]) weight(chunk);
    return std::move(lane_);
  }

 private:
  void add(Op op, std::size_t chunk, std::uint32_t microbatch) {
    if (microbatch < microbatches_) lane_.push_back(act(op, stage_[chunk], microbatch));
  }
  void forward(std::size_t chunk) { add(Op::forward, chunk, forwards_[chunk]++); }
  void input(std::size_t chunk) { add(Op::backward_input, chunk, inputs_[chunk]++); }
  void weight(std::size_t chunk) { add(Op::backward_weight, chunk, weights_[chunk]++); }
  void backward(std::size_t chunk) {
    input(chunk);
    weight(chunk);
  }

  std::uint32_t device_, devices_, microbatches_;
  std::array<std::uint32_t, 2> stage_{}, forwards_{}, inputs_{}, weights_{};
  std::vector<Action> lane_;
};

/// Chimera's group of p microbatches, played in slots of one F or one B: a device takes a B before
/// an F, the earlier microbatch, and of two the one further down its pipeline.
class ChimeraGroup {
 public:
  struct Slot {
    std::uint32_t at;
    Action action;
  };

  explicit ChimeraGroup(std::uint32_t devices)
      : devices_(devices),
        lanes_(devices),
        forwards_(2 * devices),
        backwards_(2 * devices),
        forward_end_(std::size_t{2} * devices * (devices / 2), never),
        backward_end_(forward_end_) {}

  /// By device, in order of time.
  std::vector<std::vector<Slot>> play() {
    std::uint32_t left = 2 * devices_ * devices_;
    for (std::uint32_t now = 0; left > 0; ++now) {
      std::vector<Action> started;
      for (std::uint32_t d = 0; d < devices_; ++d)
        if (const auto action = choose(d, now)) {
          lanes_[d].push_back({now, *action});
          started.push_back(*action);
        }
      EXPECTS(!started.empty());
      left -= static_cast<std::uint32_t>(started.size());
      for (const Action& action : started) {
        const bool forward = action.op == Op::forward;
        ++(forward ? forwards_ : backwards_)[action.stage.index()];
        end(forward ? forward_end_ : backward_end_, action.stage.value, action.microbatch.value) =
            now + 1;
      }
    }
    return std::move(lanes_);
  }

 private:
  static constexpr std::uint32_t never = ~0U;

  std::uint32_t& end(std::vector<std::uint32_t>& ends, std::uint32_t s, std::uint32_t m) const {
    return ends[std::size_t{s} * (devices_ / 2) + m];
  }

  std::optional<Action> choose(std::uint32_t device, std::uint32_t now) {
    using Rank = std::tuple<bool, std::uint32_t, std::uint32_t>;
    std::optional<std::pair<Rank, Action>> best;
    const auto offer = [&](Op op, std::uint32_t s, std::uint32_t m) {
      const Rank rank{op == Op::forward, m, devices_ - 1 - s % devices_};
      if (!best || rank < best->first) best = {rank, act(op, s, m)};
    };
    for (const std::uint32_t s : {device, 2 * devices_ - 1 - device}) {
      const std::uint32_t place = s % devices_;
      if (const std::uint32_t m = backwards_[s];
          m < devices_ / 2 && end(forward_end_, s, m) <= now &&
          (place == devices_ - 1 || end(backward_end_, s + 1, m) <= now))
        offer(Op::backward, s, m);
      if (const std::uint32_t m = forwards_[s];
          m < devices_ / 2 && (place == 0 || end(forward_end_, s - 1, m) <= now))
        offer(Op::forward, s, m);
    }
    if (!best) return std::nullopt;
    return best->second;
  }

  std::uint32_t devices_;
  std::vector<std::vector<Slot>> lanes_;
  std::vector<std::uint32_t> forwards_, backwards_;        ///< by stage: those started
  std::vector<std::uint32_t> forward_end_, backward_end_;  ///< by stage and microbatch
};

/// Groups follow each other 2 p slots apart, so that one's first forwards fill the last bubbles of
/// the one before.
Schedule chimera(const StageMap& stages) {
  Schedule schedule = empty_schedule(stages, false);
  const std::uint32_t p = stages.device_count;
  const auto group = ChimeraGroup(p).play();
  for (std::uint32_t d = 0; d < p; ++d) {
    std::vector<ChimeraGroup::Slot> lane;
    for (std::uint32_t g = 0; g < 2 * stages.microbatch_count / p; ++g)
      for (ChimeraGroup::Slot slot : group[d]) {
        slot.at += 2 * p * g;
        slot.action.microbatch.value += g * (p / 2);
        lane.push_back(slot);
      }
    // An F that meets a B of the group before waits: that group is to end.
    std::stable_sort(lane.begin(), lane.end(), [](const auto& a, const auto& b) {
      return std::pair(a.at, a.action.op != Op::backward) <
             std::pair(b.at, b.action.op != Op::backward);
    });
    for (const ChimeraGroup::Slot& slot : lane) schedule.devices[d].push_back(slot.action);
  }
  return schedule;
}

Schedule breadth_first(const StageMap& stages) {
  Schedule schedule = empty_schedule(stages, false);
  const auto all = [&](Op op, std::uint32_t s) {
    for (std::uint32_t m = 0; m < stages.microbatch_count; ++m)
      schedule.devices[stages.device_of_stage[s].index()].push_back(act(op, s, m));
  };
  for (std::uint32_t s = 0; s < stages.stage_count(); ++s) all(Op::forward, s);
  for (std::uint32_t s = stages.stage_count(); s-- > 0;) all(Op::backward, s);
  return schedule;
}

/// One lane of DualPipe, in the eight phases of its authors' program. Direction 0 is the one in
/// which the nearer end of the row is first.
class DualLane {
 public:
  DualLane(std::uint32_t device, std::uint32_t devices, std::uint32_t half_microbatches)
      : half_(devices / 2),
        rank_(std::min(device, devices - 1 - device)),
        devices_(devices),
        microbatches_(half_microbatches) {
    const bool second = device >= half_;
    stage_[second ? 1 : 0] = device;
    stage_[second ? 0 : 1] = 2 * devices - 1 - device;
  }

  std::vector<Action> take() {
    const std::uint32_t outer = half_ - rank_ - 1;
    for (std::uint32_t i = 0; i < 2 * outer; ++i) forward(0);
    for (std::uint32_t i = 0; i <= rank_; ++i) {
      forward(0);
      forward(1);
    }
    for (std::uint32_t i = 0; i < outer; ++i) {
      backward(1, true);
      weight();
      forward(1);
    }
    for (std::uint32_t i = 0; i < microbatches_ + rank_ + 1 - devices_; ++i) {
      forward(0);
      backward(1, false);
      forward(1);
      backward(0, false);
    }
    for (std::uint32_t i = 0; i < outer; ++i) {
      backward(1, false);
      forward(1);
      backward(0, false);
    }
    // The second half of these leaves W for later.
    const std::uint32_t middle = (rank_ + 1) / 2;
    for (std::uint32_t i = 0; i <= rank_; ++i) {
      backward(1, i > middle || (i == middle && rank_ % 2 == 1));
      backward(0, i >= middle);
    }
    for (std::uint32_t i = 0; i < outer; ++i) {
      weight();
      backward(0, true);
    }
    for (std::uint32_t i = 0; i <= rank_; ++i) weight();
    EXPECTS(deferred_.empty());
    return std::move(lane_);
  }

 private:
  void forward(std::size_t direction) {
    lane_.push_back(act(Op::forward, stage_[direction], forwards_[direction]++));
  }
  void backward(std::size_t direction, bool defer) {
    const std::uint32_t m = backwards_[direction]++;
    lane_.push_back(act(Op::backward_input, stage_[direction], m));
    deferred_.push_back(act(Op::backward_weight, stage_[direction], m));
    if (defer) return;
    lane_.push_back(deferred_.back());
    deferred_.pop_back();
  }
  void weight() {
    EXPECTS(!deferred_.empty());
    lane_.push_back(deferred_.front());
    deferred_.pop_front();
  }

  std::uint32_t half_, rank_, devices_, microbatches_;
  std::array<std::uint32_t, 2> stage_{}, forwards_{}, backwards_{};
  std::deque<Action> deferred_;
  std::vector<Action> lane_;
};

/// A schedule with split backward of which `Lane` writes each device's part.
template <class Lane>
Schedule lane_by_lane(const StageMap& stages) {
  Schedule schedule = empty_schedule(stages, true);
  for (std::uint32_t d = 0; d < stages.device_count; ++d)
    schedule.devices[d] = Lane(d, stages.device_count, stages.microbatch_count).take();
  return schedule;
}

Schedule zero_bubble_limited(const StageMap& stages, std::uint32_t limit) {
  const std::size_t p = stages.stage_count();
  ZeroBubbleProblem problem;
  problem.forward.assign(p, 1);
  problem.backward_input.assign(p, 1);
  problem.backward_weight.assign(p, 1);
  problem.in_flight_limits.assign(p, limit);
  problem.microbatches = stages.microbatch_count;
  Schedule schedule = zero_bubble_search(problem);
  schedule.stages = stages;
  return schedule;
}

Schedule compute_order(ScheduleFamily family, const StageMap& stages) {
  switch (family) {
    case ScheduleFamily::pipedream_flush:
    case ScheduleFamily::pipedream_2bw: return compute_schedule(ScheduleKind::one_f_one_b, stages);
    case ScheduleFamily::zero_bubble_h2: return zero_bubble_h2(stages);
    case ScheduleFamily::zero_bubble_1p: return zero_bubble_limited(stages, stages.device_count);
    case ScheduleFamily::zero_bubble_2p:
      return zero_bubble_limited(stages, 2 * stages.device_count);
    case ScheduleFamily::zero_bubble_v: return lane_by_lane<VLane>(stages);
    case ScheduleFamily::chimera: return chimera(stages);
    case ScheduleFamily::breadth_first:
    case ScheduleFamily::layered: return breadth_first(stages);
    case ScheduleFamily::dualpipe: return lane_by_lane<DualLane>(stages);
  }
  return {};
}

bool bidirectional(ScheduleFamily family) {
  return family == ScheduleFamily::chimera || family == ScheduleFamily::dualpipe;
}

Status check_shape(ScheduleFamily family, const FamilyShape& shape) {
  const auto wrong = [&](const std::string& why) {
    return refuse(fmt::format("schedule \"{}\": {}", to_string(family), why));
  };
  const std::uint32_t p = shape.devices;
  const std::uint32_t m = shape.microbatches;
  if (p == 0) return wrong("there is no device; at least 1 is needed");
  if (m == 0) return wrong("there is no microbatch; at least 1 is needed");
  if (family == ScheduleFamily::breadth_first && shape.loops == 0)
    return wrong("0 stages a device; at least 1 is needed");
  if (family == ScheduleFamily::layered && shape.loops < p)
    return wrong(fmt::format("{} layers cannot occupy {} devices", shape.loops, p));
  if (bidirectional(family) && p % 2 == 1)
    return wrong(fmt::format("{} devices; an even number is needed", p));
  if (family == ScheduleFamily::chimera && m % p != 0)
    return wrong(fmt::format("{} microbatches are no multiple of the {} devices", m, p));
  if (family == ScheduleFamily::dualpipe && (m % 2 == 1 || m < 2 * p))
    return wrong(fmt::format(
        "{} microbatches; an even number of at least {} is needed for {} devices", m, 2 * p, p));
  return {};
}

/// N of each stage of each device, then U of each.
void add_norm_and_update(Schedule& schedule) {
  for (const Op op : {Op::norm, Op::update})
    for (std::uint32_t s = 0; s < schedule.stages.stage_count(); ++s)
      schedule.devices[schedule.stages.device_of_stage[s].index()].push_back(act(op, s, 0));
}

}  // namespace

std::string_view to_string(ScheduleFamily family) {
  return family_names[static_cast<std::size_t>(family)];
}

Result<ScheduleFamily> parse_schedule_family(std::string_view text) {
  for (std::size_t i = 0; i < schedule_family_count; ++i)
    if (text == family_names[i]) return static_cast<ScheduleFamily>(i);
  return refuse(fmt::format("\"{}\" is not a simulated schedule; there are {}", text.substr(0, 40),
                            fmt::join(family_names, ", ")));
}

StageMap family_stages(ScheduleFamily family, const FamilyShape& shape) {
  const std::uint32_t p = shape.devices;
  StageMap map;
  map.device_count = p;
  map.microbatch_count = shape.microbatches;
  std::uint32_t stages = p;
  if (family == ScheduleFamily::zero_bubble_v || bidirectional(family)) stages = 2 * p;
  if (family == ScheduleFamily::breadth_first) stages = p * shape.loops;
  if (family == ScheduleFamily::layered) stages = shape.loops;
  const bool folded = family == ScheduleFamily::zero_bubble_v || bidirectional(family);
  for (std::uint32_t s = 0; s < stages; ++s)
    map.device_of_stage.push_back(DeviceId{folded && s >= p ? 2 * p - 1 - s : s % p});
  if (bidirectional(family)) {
    map.chains = 2;
    map.microbatch_count /= 2;
  }
  map.transfer_slots = map.microbatch_count;
  return map;
}

Result<Schedule> make_schedule(ScheduleFamily family, const FamilyShape& shape) {
  TROUPE_TRY(check_shape(family, shape));
  Schedule schedule = compute_order(family, family_stages(family, shape));
  const auto& first = schedule.devices.front();
  if (std::none_of(first.begin(), first.end(), [](auto& a) { return a.op == Op::norm; }))
    add_norm_and_update(schedule);
  schedule = add_transfers(std::move(schedule));
  TROUPE_TRY(validate(schedule));
  return schedule;
}

namespace {

/// Peak over a stage's lane of newest - oldest + 1. `version_of(k, done)`: what microbatch k takes
/// after `done` backwards of the stage; `newest(done)`: what exists by then.
template <class VersionOf, class Newest>
std::vector<std::uint32_t> peak_versions(const Schedule& schedule,
                                         const VersionOf& version_of,
                                         const Newest& newest) {
  const std::size_t stages = schedule.stages.stage_count();
  const std::uint32_t all = schedule.stages.microbatch_count;
  const Op closes = schedule.split_backward ? Op::backward_weight : Op::backward;
  std::vector<std::deque<std::uint32_t>> in_use(stages);  // versions of microbatches in flight
  std::vector<std::uint32_t> started(stages), done(stages), peak(stages, 1);
  for (const auto& lane : schedule.devices)
    for (const Action& action : lane) {
      const std::size_t s = action.stage.index();
      if (action.op == Op::forward) in_use[s].push_back(version_of(started[s]++, done[s]));
      if (action.op == closes) {
        in_use[s].pop_front();
        ++done[s];
      }
      const std::uint32_t last = newest(done[s]);
      std::uint32_t oldest = started[s] < all ? version_of(started[s], done[s]) : last;
      if (!in_use[s].empty()) oldest = std::min(oldest, in_use[s].front());
      peak[s] = std::max(peak[s], last - oldest + 1);
    }
  return peak;
}

}  // namespace

std::vector<std::uint32_t> weight_versions_pipedream(const Schedule& schedule) {
  return peak_versions(
      schedule, [](std::uint32_t, std::uint32_t done) { return done; },
      [](std::uint32_t done) { return done; });
}

std::uint32_t version_2bw(std::uint32_t microbatch, std::uint32_t per_update) {
  EXPECTS(per_update > 0);
  return std::max(microbatch / per_update, 1U) - 1;
}

std::vector<std::uint32_t> weight_versions_2bw(const Schedule& schedule, std::uint32_t per_update) {
  return peak_versions(
      schedule, [&](std::uint32_t k, std::uint32_t) { return version_2bw(k, per_update); },
      [&](std::uint32_t done) { return done / per_update; });
}

}  // namespace troupe
