#include "planner/schedules.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>

#include "planner/dry_run.h"
#include "planner/lowering.h"

namespace troupe {
namespace {

/// What a dry run prefers, see the header.
struct Policy {
  bool split = false;
  bool forward_first = false;            ///< no backward before all forwards of the device
  std::vector<std::uint32_t> to_input;   ///< by stage: most microbatches from F to B or I
  std::vector<std::uint32_t> to_weight;  ///< by stage: most microbatches from F to B or W
  std::uint32_t group = 1;               ///< microbatches that go together where stages compete
};

Action act(Op op, std::uint32_t stage, std::uint32_t microbatch) {
  return {op, StageId{stage}, MicrobatchId{microbatch}};
}

/// N of each stage of each device, then U of each.
void add_norm_and_update(Schedule& schedule) {
  for (const Op op : {Op::norm, Op::update})
    for (std::uint32_t s = 0; s < schedule.stages.stage_count(); ++s)
      schedule.devices[schedule.stages.device_of_stage[s].index()].push_back(act(op, s, 0));
}

/// Orders the compute actions by playing them.
class ListScheduler {
 public:
  ListScheduler(const StageMap& stages, Policy policy)
      : policy_(std::move(policy)),
        run_(stages, policy_.split),
        forwards_(stages.stage_count()),
        inputs_(stages.stage_count()),
        weights_(stages.stage_count()),
        local_(stages.device_count),
        running_(stages.device_count) {
    schedule_.stages = stages;
    schedule_.split_backward = policy_.split;
    schedule_.devices.resize(stages.device_count);
    for (std::uint32_t s = 0; s < stages.stage_count(); ++s)
      local_[stages.device_of_stage[s].index()].push_back(s);
  }

  Schedule play() {
    start_idle();
    while (!ends_.empty()) {
      now_ = ends_.top().first;
      while (!ends_.empty() && ends_.top().first == now_) {
        end(ends_.top().second);
        ends_.pop();
      }
      start_idle();
    }
    for (const std::uint32_t done : policy_.split ? weights_ : inputs_)
      EXPECTS(done == schedule_.stages.microbatch_count);
    add_norm_and_update(schedule_);
    return std::move(schedule_);
  }

 private:
  using Rank = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;

  std::uint32_t group_of(std::uint32_t microbatch) const { return microbatch / policy_.group; }

  void start_idle() {
    for (std::size_t d = 0; d < local_.size(); ++d) {
      if (running_[d]) continue;
      const auto action = choose(d);
      if (!action) continue;
      running_[d] = action;
      schedule_.devices[d].push_back(*action);
      ends_.emplace(now_ + DryRun::ticks(*action), d);
      const std::size_t s = action->stage.index();
      if (action->op == Op::forward) ++forwards_[s];
    }
  }

  void end(std::size_t d) {
    const Action action = *running_[d];
    running_[d].reset();
    run_.finish(action);
    const std::size_t s = action.stage.index();
    if (action.op == Op::backward || action.op == Op::backward_input) ++inputs_[s];
    if (action.op == Op::backward || action.op == Op::backward_weight) ++weights_[s];
  }

  std::optional<Action> choose(std::size_t d) const {
    if (policy_.forward_first) {
      if (const auto forward = best_forward(d)) return forward;
      for (const std::uint32_t s : local_[d])
        if (forwards_[s] < schedule_.stages.microbatch_count) return std::nullopt;
      return best_backward(d);
    }
    if (const auto backward = best_backward(d)) return backward;
    if (const auto forward = best_forward(d)) return forward;
    return policy_.split ? best_weight(d) : std::nullopt;
  }

  /// The best-ranked of the stages' next actions of one op that can start.
  template <class Next, class RankOf>
  std::optional<Action> best(std::size_t d, Next next, RankOf rank_of) const {
    std::optional<Action> found;
    Rank found_rank;
    for (const std::uint32_t s : local_[d]) {
      const std::optional<Action> action = next(s);
      if (!action || action->microbatch.value >= schedule_.stages.microbatch_count) continue;
      const Rank rank = rank_of(s, action->microbatch.value);
      if ((found && found_rank <= rank) || !run_.ready(*action)) continue;
      found = action;
      found_rank = rank;
    }
    return found;
  }

  std::optional<Action> best_forward(std::size_t d) const {
    return best(
        d,
        [&](std::uint32_t s) -> std::optional<Action> {
          if (forwards_[s] - inputs_[s] >= policy_.to_input[s] ||
              forwards_[s] - weights_[s] >= policy_.to_weight[s])
            return std::nullopt;
          return act(Op::forward, s, forwards_[s]);
        },
        [&](std::uint32_t s, std::uint32_t m) {
          return Rank{group_of(m), s, m};
        });
  }

  std::optional<Action> best_backward(std::size_t d) const {
    const Op op = policy_.split ? Op::backward_input : Op::backward;
    return best(
        d, [&](std::uint32_t s) { return std::optional(act(op, s, inputs_[s])); },
        [&](std::uint32_t s, std::uint32_t m) {
          return Rank{group_of(m), ~s, m};
        });
  }

  std::optional<Action> best_weight(std::size_t d) const {
    return best(
        d, [&](std::uint32_t s) { return std::optional(act(Op::backward_weight, s, weights_[s])); },
        [&](std::uint32_t s, std::uint32_t m) {
          return Rank{m, ~s, 0};
        });
  }

  Policy policy_;
  Schedule schedule_;
  DryRun run_;
  std::vector<std::uint32_t> forwards_, inputs_, weights_;  ///< by stage: started F, ended I, W
  std::vector<std::vector<std::uint32_t>> local_;           ///< by device: its stages
  std::vector<std::optional<Action>> running_;              ///< by device
  using End = std::pair<std::uint64_t, std::size_t>;        ///< tick, device
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  std::uint64_t now_ = 0;
};

Policy policy_of(ScheduleKind kind, const StageMap& stages) {
  Policy policy;
  const auto depths = pipeline_depths(stages);
  policy.to_input = depths;
  policy.to_weight.assign(depths.size(), depths.front());
  policy.group = depths.front();
  if (kind == ScheduleKind::gpipe) {
    policy.forward_first = true;
    policy.to_input.assign(depths.size(), stages.microbatch_count);
    policy.to_weight = policy.to_input;
  }
  policy.split = kind == ScheduleKind::zero_bubble_h1;
  return policy;
}

/// Zero bubble with one stage a device: `warm_up` forwards, then I, W and F in turn with W `lag`
/// microbatches behind, then I and W in turn, then the W that are left.
void add_zero_bubble_lane(std::vector<Action>& lane,
                          std::uint32_t stage,
                          std::uint32_t microbatches,
                          std::uint32_t warm_up,
                          std::uint32_t lag) {
  std::uint32_t forward = 0;
  std::uint32_t weight = 0;
  while (forward < std::min(warm_up, microbatches))
    lane.push_back(act(Op::forward, stage, forward++));
  for (std::uint32_t m = 0; m < microbatches; ++m) {
    lane.push_back(act(Op::backward_input, stage, m));
    const bool draining = forward == microbatches;
    if (draining ? weight <= m : m >= lag)
      lane.push_back(act(Op::backward_weight, stage, weight++));
    if (!draining) lane.push_back(act(Op::forward, stage, forward++));
  }
  while (weight < microbatches) lane.push_back(act(Op::backward_weight, stage, weight++));
}

/// H1 (extra = 0) or H2 (extra = 1) where each stage has a device of its own.
Schedule zero_bubble_regular(const StageMap& stages, std::uint32_t extra) {
  Schedule schedule;
  schedule.stages = stages;
  schedule.split_backward = true;
  schedule.devices.resize(stages.device_count);
  const std::uint32_t p = stages.stage_count();
  for (std::uint32_t s = 0; s < p; ++s)
    add_zero_bubble_lane(schedule.devices[stages.device_of_stage[s].index()], s,
                         stages.microbatch_count, p - s + extra * (p - s - 1), s + extra * s);
  add_norm_and_update(schedule);
  return schedule;
}

/// p where stage s is on the s mod p th of p devices, all with the same number of stages, and the
/// microbatches fill groups of p; else 0.
std::uint32_t regular_width(const StageMap& stages) {
  const auto& devices = stages.device_of_stage;
  std::uint32_t p = 1;
  while (p < devices.size() && devices[p] != devices[0]) ++p;
  for (std::uint32_t s = 0; s < devices.size(); ++s)
    if (devices[s] != devices[s % p]) return 0;
  for (std::uint32_t a = 0; a < p; ++a)
    for (std::uint32_t b = a + 1; b < p; ++b)
      if (devices[a] == devices[b]) return 0;
  return devices.size() % p == 0 && stages.microbatch_count % p == 0 ? p : 0;
}

bool each_stage_alone(const StageMap& stages) {
  std::vector<bool> taken(stages.device_count);
  for (const DeviceId device : stages.device_of_stage) {
    if (taken[device.index()]) return false;
    taken[device.index()] = true;
  }
  return true;
}

/// The regular interleaved order, see the header.
Schedule interleaved_regular(const StageMap& stages, std::uint32_t p) {
  Schedule schedule;
  schedule.stages = stages;
  schedule.devices.resize(stages.device_count);
  const std::uint32_t v = stages.stage_count() / p;
  const std::uint32_t total = v * stages.microbatch_count;
  for (std::uint32_t d = 0; d < p; ++d) {
    auto& lane = schedule.devices[stages.device_of_stage[d].index()];
    const auto nth = [&](Op op, std::uint32_t k) {
      const std::uint32_t turn = k % (p * v) / p;
      const std::uint32_t part = op == Op::forward ? turn : v - 1 - turn;
      lane.push_back(act(op, part * p + d, k / (p * v) * p + k % p));
    };
    const std::uint32_t warm_up = std::min(total, 2 * (p - d - 1) + (v - 1) * p);
    for (std::uint32_t k = 0; k < warm_up; ++k) nth(Op::forward, k);
    for (std::uint32_t k = 0; k < total; ++k) {
      if (warm_up + k < total) nth(Op::forward, warm_up + k);
      nth(Op::backward, k);
    }
  }
  add_norm_and_update(schedule);
  return schedule;
}

}  // namespace

std::vector<std::uint32_t> pipeline_depths(const StageMap& stages) {
  std::vector<std::uint32_t> depths(stages.stage_count(), 1);
  for (std::uint32_t s = stages.stage_count() - 1; s-- > 0;)
    depths[s] = depths[s + 1] + (same_device(s, s + 1, stages) ? 0 : 1);
  return depths;
}

Schedule compute_schedule(ScheduleKind kind, const StageMap& stages) {
  if (kind == ScheduleKind::interleaved)
    if (const std::uint32_t p = regular_width(stages); p > 0) return interleaved_regular(stages, p);
  if (kind == ScheduleKind::zero_bubble_h1 && each_stage_alone(stages))
    return zero_bubble_regular(stages, 0);
  return ListScheduler(stages, policy_of(kind, stages)).play();
}

Schedule zero_bubble_h2(const StageMap& stages) {
  if (each_stage_alone(stages)) return zero_bubble_regular(stages, 1);
  Policy policy = policy_of(ScheduleKind::zero_bubble_h1, stages);
  for (std::uint32_t& most : policy.to_input) most = 2 * most - 1;
  for (std::uint32_t& most : policy.to_weight) most = 2 * most - 1;
  return ListScheduler(stages, policy).play();
}

Schedule split_backward(Schedule fused) {
  fused.split_backward = true;
  for (auto& lane : fused.devices) {
    std::vector<Action> split;
    for (const Action& action : lane) {
      if (action.op != Op::backward) {
        split.push_back(action);
        continue;
      }
      split.push_back({Op::backward_input, action.stage, action.microbatch});
      split.push_back({Op::backward_weight, action.stage, action.microbatch});
    }
    lane = std::move(split);
  }
  return fused;
}

Result<Schedule> make_schedule(ScheduleKind kind, const StageMap& stages) {
  const auto refuse = [](std::string text) {
    return Error{ErrorCode::invalid_input, "schedule: " + std::move(text)};
  };
  if (stages.device_of_stage.empty()) return refuse("there is no stage; at least 1 is needed");
  if (stages.microbatch_count == 0) return refuse("there is no microbatch; at least 1 is needed");
  if (stages.transfer_slots == 0) return refuse("transfer_slots is 0; at least 1 is needed");
  for (const DeviceId device : stages.device_of_stage)
    if (device.value >= stages.device_count)
      return refuse("stage on device " + std::to_string(device.value) + ", but there are " +
                    std::to_string(stages.device_count) + " devices");
  Schedule schedule = add_transfers(compute_schedule(kind, stages));
  TROUPE_TRY(validate(schedule));
  return schedule;
}

}  // namespace troupe
