#include "planner/zero_bubble_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "planner/schedules.h"

namespace troupe {
namespace {

/// Of one stage. As every kind runs in microbatch order, the n-th entry of a kind is microbatch n,
/// and a lane is legal where no prefix holds more I than F, more W than I, or too much memory.
using Lane = std::vector<Op>;
using Lanes = std::vector<Lane>;

constexpr Seconds unknown = std::numeric_limits<Seconds>::infinity();
constexpr std::size_t kind_count = 3;

constexpr std::size_t kind_of(Op op) {
  return op == Op::forward ? 0 : op == Op::backward_input ? 1 : 2;
}

/// What a lane has started so far, by kind, and where it stands in time.
struct Progress {
  std::array<std::uint32_t, kind_count> count{};
  Seconds begin = 0;  ///< of the first action
  Seconds now = 0;    ///< end of the last action
};

/// Whether a stage that has started so many F, I and W is within its memory.
bool fits(const std::array<std::uint32_t, kind_count>& count,
          const ZeroBubbleProblem& problem,
          std::size_t stage) {
  const double held = (count[0] - count[1]) + problem.deferred_share * (count[1] - count[2]);
  return held <= problem.in_flight_limits[stage] + 1e-9;
}

/// How good lanes are: the longest span, then the sum of all, so that a step on a plateau counts.
using Quality = std::pair<Seconds, Seconds>;
constexpr Quality worst{unknown, unknown};

/// Plays lanes in any order that their dependencies allow.
class Player {
 public:
  explicit Player(const ZeroBubbleProblem& problem)
      : problem_(problem), stages_(static_cast<std::uint32_t>(problem.forward.size())) {}

  /// When the stage's next F or I could start, as far as that is known; `unknown` where the stage
  /// beside it has not got there. W never waits for others.
  Seconds arrival(std::uint32_t stage, Op op, std::uint32_t microbatch) const {
    if (op == Op::forward)
      return stage == 0 ? 0 : end(Op::forward, stage - 1, microbatch) + problem_.transfer;
    if (op == Op::backward_weight) return 0;
    if (stage + 1 == stages_) return 0;
    return end(Op::backward_input, stage + 1, microbatch) + problem_.transfer;
  }

  Seconds seconds(std::uint32_t stage, Op op) const {
    return op == Op::forward          ? problem_.forward[stage]
           : op == Op::backward_input ? problem_.backward_input[stage]
                                      : problem_.backward_weight[stage];
  }

  void clear() {
    progress_.assign(stages_, {});
    ends_.assign(std::size_t{2} * stages_ * problem_.microbatches, unknown);
  }

  /// Promise: its arrival is known.
  void start(std::uint32_t stage, Op op) {
    Progress& at = progress_[stage];
    const std::uint32_t m = at.count[kind_of(op)]++;
    const Seconds begin = std::max(at.now, arrival(stage, op, m));
    if (at.count[0] + at.count[1] + at.count[2] == 1) at.begin = begin;
    at.now = begin + seconds(stage, op);
    if (op != Op::backward_weight) ends_[index(op, stage, m)] = at.now;
  }

  const Progress& progress(std::uint32_t stage) const { return progress_[stage]; }

  Quality quality() const {
    Quality quality{0, 0};
    for (const Progress& at : progress_) {
      quality.first = std::max(quality.first, at.now - at.begin);
      quality.second += at.now - at.begin;
    }
    return quality;
  }

  /// `worst` for a deadlock.
  Quality play(const Lanes& lanes) {
    clear();
    std::vector<std::size_t> next(stages_);
    std::vector<std::uint32_t> open;
    for (std::uint32_t s = stages_; s-- > 0;) open.push_back(s);
    while (!open.empty()) {
      const std::uint32_t s = open.back();
      open.pop_back();
      const std::size_t before = next[s];
      while (next[s] < lanes[s].size()) {
        const Op op = lanes[s][next[s]];
        if (arrival(s, op, progress_[s].count[kind_of(op)]) == unknown) break;
        start(s, op);
        ++next[s];
      }
      if (next[s] == before) continue;
      if (s > 0) open.push_back(s - 1);
      if (s + 1 < stages_) open.push_back(s + 1);
    }
    for (std::uint32_t s = 0; s < stages_; ++s)
      if (next[s] < lanes[s].size()) return worst;
    return quality();
  }

 private:
  std::size_t index(Op op, std::uint32_t stage, std::uint32_t microbatch) const {
    return (kind_of(op) * stages_ + stage) * problem_.microbatches + microbatch;
  }
  Seconds end(Op op, std::uint32_t stage, std::uint32_t microbatch) const {
    return ends_[index(op, stage, microbatch)];
  }

  const ZeroBubbleProblem& problem_;
  std::uint32_t stages_;
  std::vector<Progress> progress_;
  std::vector<Seconds> ends_;  ///< of F and I, by kind, stage and microbatch
};

/// Settings of the rule.
struct Rule {
  double warm_up = 1;       ///< F before the first I: p - s + warm_up (p - s - 1)
  double gap = 1;           ///< the share of W that a gap must have
  bool late_input = false;  ///< an F may make a known I late
};

/// Plays the rule: the stage that can act first acts.
class Greedy {
 public:
  Greedy(const ZeroBubbleProblem& problem, const Rule& rule)
      : problem_(problem),
        rule_(rule),
        player_(problem),
        stages_(static_cast<std::uint32_t>(problem.forward.size())),
        rounding_(1e-6 * *std::min_element(problem.forward.begin(), problem.forward.end())) {}

  std::pair<Lanes, Quality> play() {
    player_.clear();
    lanes_.assign(stages_, {});
    while (true) {
      std::optional<std::pair<Seconds, std::uint32_t>> first;
      Op op = Op::forward;
      for (std::uint32_t s = 0; s < stages_; ++s) {
        const auto choice = choose(s);
        if (!choice || (first && first->first <= choice->first + rounding_)) continue;
        first = {choice->first, s};
        op = choice->second;
      }
      if (!first) break;
      player_.start(first->second, op);
      lanes_[first->second].push_back(op);
    }
    for (const Lane& lane : lanes_)
      if (lane.size() < std::size_t{kind_count} * problem_.microbatches) return {lanes_, worst};
    return {std::move(lanes_), player_.quality()};
  }

 private:
  std::uint32_t warm_up_limit(std::uint32_t s) const {
    const std::uint32_t after = stages_ - s - 1;
    return after + 1 + static_cast<std::uint32_t>(std::lround(rule_.warm_up * after));
  }

  /// When and what the stage would do next, as far as it is known.
  std::optional<std::pair<Seconds, Op>> choose(std::uint32_t s) const {
    const Progress& at = player_.progress(s);
    const auto [forwards, inputs, weights] = at.count;
    const bool room = fits({forwards + 1, inputs, weights}, problem_, s) &&
                      (inputs > 0 || forwards < warm_up_limit(s));
    const Seconds forward = forwards < problem_.microbatches && room
                                ? player_.arrival(s, Op::forward, forwards)
                                : unknown;
    const Seconds input =
        inputs < forwards ? player_.arrival(s, Op::backward_input, inputs) : unknown;
    // What is there but for rounding is there: sums in another order must not change the rule.
    const Seconds soon = at.now + rounding_;
    if (input <= soon) return std::pair{std::max(at.now, input), Op::backward_input};
    const bool timely =
        rule_.late_input || std::max(forward, at.now) + problem_.forward[s] <= input + rounding_;
    if (forward <= soon && timely) return std::pair{std::max(at.now, forward), Op::forward};
    const Seconds next = std::min(input, timely ? forward : unknown);
    if (weights < inputs &&
        (next == unknown || next - at.now >= rule_.gap * problem_.backward_weight[s] - rounding_))
      return std::pair{at.now, Op::backward_weight};
    if (next == unknown) return std::nullopt;
    return std::pair{next, input <= next ? Op::backward_input : Op::forward};
  }

  const ZeroBubbleProblem& problem_;
  Rule rule_;
  Player player_;
  std::uint32_t stages_;
  Seconds rounding_;
  Lanes lanes_;
};

bool legal(const Lane& lane, const ZeroBubbleProblem& problem, std::size_t stage) {
  std::array<std::uint32_t, kind_count> count{};
  for (const Op op : lane) {
    ++count[kind_of(op)];
    if (count[1] > count[0] || count[2] > count[1] || !fits(count, problem, stage)) return false;
  }
  return true;
}

/// Moves single actions within their lanes while that helps and effort is left.
void improve(const ZeroBubbleProblem& problem, Lanes& lanes, Quality& quality) {
  Player player(problem);
  std::uint64_t cost = 0;
  for (const Lane& lane : lanes) cost += lane.size();
  std::uint64_t left = problem.effort / std::max<std::uint64_t>(cost, 1);
  for (bool better = true; better && left > 0;) {
    better = false;
    for (std::size_t s = 0; s < lanes.size(); ++s)
      for (std::size_t from = 0; from < lanes[s].size(); ++from)
        for (std::size_t to = 0; to < lanes[s].size() && left > 0; ++to) {
          if (lanes[s][from] == lanes[s][to]) continue;
          const Lane before = lanes[s];
          Lane& lane = lanes[s];
          const auto at = [&](std::size_t i) {
            return lane.begin() + static_cast<std::ptrdiff_t>(i);
          };
          if (from < to) std::rotate(at(from), at(from + 1), at(to + 1));
          if (to < from) std::rotate(at(to), at(from), at(from + 1));
          if (legal(lane, problem, s)) {
            --left;
            if (const Quality now = player.play(lanes); now < quality) {
              quality = now;
              better = true;
              continue;
            }
          }
          lanes[s] = before;
        }
  }
}

/// The written orders H1 and H2, where they keep to the limits.
void offer_written_orders(const ZeroBubbleProblem& problem,
                          const StageMap& stages,
                          Lanes& best,
                          Quality& quality) {
  for (const Schedule& written :
       {compute_schedule(ScheduleKind::zero_bubble_h1, stages), zero_bubble_h2(stages)}) {
    Lanes lanes(written.devices.size());
    bool all_fit = true;
    for (std::size_t s = 0; s < lanes.size(); ++s) {
      for (const Action& action : written.devices[s])
        if (action.op != Op::norm && action.op != Op::update) lanes[s].push_back(action.op);
      all_fit = all_fit && legal(lanes[s], problem, s);
    }
    if (!all_fit) continue;
    const Quality now = Player(problem).play(lanes);
    if (now < quality) {
      quality = now;
      best = std::move(lanes);
    }
  }
}

}  // namespace

Schedule zero_bubble_search(const ZeroBubbleProblem& problem) {
  const std::size_t p = problem.forward.size();
  EXPECTS(p > 0 && problem.microbatches > 0 && problem.backward_input.size() == p &&
          problem.backward_weight.size() == p && problem.in_flight_limits.size() == p);
  for (const std::uint32_t limit : problem.in_flight_limits) EXPECTS(limit > 0);
  Schedule schedule;
  for (std::uint32_t s = 0; s < p; ++s) schedule.stages.device_of_stage.push_back(DeviceId{s});
  schedule.stages.device_count = static_cast<std::uint32_t>(p);
  schedule.stages.microbatch_count = problem.microbatches;
  schedule.stages.transfer_slots = problem.microbatches;

  Lanes best;
  Quality quality = worst;
  offer_written_orders(problem, schedule.stages, best, quality);
  for (const double warm_up : {0.0, 0.5, 0.75, 1.0, 1.05, 1.1, 1.25, 2.0})
    for (const double gap : {1.0, 0.75, 0.5, 0.25, 0.0})
      for (const bool late : {false, true}) {
        auto [lanes, now] = Greedy(problem, {warm_up, gap, late}).play();
        if (!(now < quality)) continue;
        quality = now;
        best = std::move(lanes);
      }
  EXPECTS(quality < worst);
  improve(problem, best, quality);

  schedule.split_backward = true;
  schedule.devices.resize(p);
  for (std::uint32_t s = 0; s < p; ++s) {
    std::array<std::uint32_t, kind_count> count{};
    for (const Op op : best[s])
      schedule.devices[s].push_back({op, StageId{s}, MicrobatchId{count[kind_of(op)]++}});
    for (const Op op : {Op::norm, Op::update})
      schedule.devices[s].push_back({op, StageId{s}, MicrobatchId{0}});
  }
  return schedule;
}

}  // namespace troupe
