#include "planner/vocabulary_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>

#include "planner/result.h"

namespace troupe {
namespace {

constexpr Seconds unknown = std::numeric_limits<Seconds>::infinity();
constexpr std::array all_ops{VocabularyOp::backward, VocabularyOp::forward, VocabularyOp::score,
                             VocabularyOp::tail};

constexpr std::size_t at(VocabularyOp op) {
  return static_cast<std::size_t>(op);
}

/// What has ended when, and what that lets start.
class Progress {
 public:
  explicit Progress(const VocabularyProblem& problem)
      : problem_(problem),
        stages_(static_cast<std::uint32_t>(problem.forward.size())),
        ends_(all_ops.size() * stages_ * problem.microbatches, unknown) {
    for (auto& barrier : barriers_) barrier.assign(problem.microbatches, {});
  }

  Seconds seconds(const VocabularyPass& pass) const {
    switch (pass.op) {
      case VocabularyOp::forward: return problem_.forward[pass.stage];
      case VocabularyOp::backward: return problem_.backward[pass.stage];
      case VocabularyOp::score: return problem_.score;
      case VocabularyOp::tail: return problem_.tail;
    }
    return 0;
  }

  /// When what the pass needs is there; unknown where that has not been played.
  Seconds arrival(const VocabularyPass& pass) const {
    const auto [op, s, m] = pass;
    const std::uint32_t last = stages_ - 1;
    switch (op) {
      case VocabularyOp::forward:
        return s == 0 ? 0 : end({op, s - 1, m}) + problem_.transfer[s - 1];
      case VocabularyOp::score:
        return end({VocabularyOp::forward, last, m}) + (s == last ? 0 : problem_.broadcast);
      case VocabularyOp::tail: return of_all(0, m) + problem_.barrier;
      case VocabularyOp::backward:
        if (s < last) return end({op, s + 1, m}) + problem_.transfer[s];
        return problem_.barriers == VocabularyBarriers::two
                   ? of_all(1, m) + problem_.reduce
                   : of_all(0, m) + std::max(problem_.barrier, problem_.reduce);
    }
    return unknown;
  }

  void note(const VocabularyPass& pass, Seconds end) {
    ends_[index(pass)] = end;
    if (pass.op != VocabularyOp::score && pass.op != VocabularyOp::tail) return;
    Barrier& barrier = barriers_[pass.op == VocabularyOp::score ? 0 : 1][pass.microbatch];
    ++barrier.stages;
    barrier.end = std::max(barrier.end, end);
  }

 private:
  struct Barrier {
    std::uint32_t stages = 0;
    Seconds end = 0;
  };

  std::size_t index(const VocabularyPass& pass) const {
    return (at(pass.op) * stages_ + pass.stage) * problem_.microbatches + pass.microbatch;
  }
  Seconds end(const VocabularyPass& pass) const { return ends_[index(pass)]; }
  /// When all stages have run S (0) or T (1) of a microbatch.
  Seconds of_all(std::size_t which, std::uint32_t microbatch) const {
    const Barrier& barrier = barriers_[which][microbatch];
    return barrier.stages == stages_ ? barrier.end : unknown;
  }

  const VocabularyProblem& problem_;
  std::uint32_t stages_;
  std::vector<Seconds> ends_;                     ///< by kind, stage and microbatch
  std::array<std::vector<Barrier>, 2> barriers_;  ///< of S and T, by microbatch
};

void check(const VocabularyProblem& problem) {
  EXPECTS(!problem.forward.empty() && problem.microbatches > 0);
  EXPECTS(problem.backward.size() == problem.forward.size());
  EXPECTS(problem.transfer.size() + 1 == problem.forward.size());
}

/// The stages act when they are free and something is there.
class Greedy {
 public:
  explicit Greedy(const VocabularyProblem& problem)
      : problem_(problem),
        stages_(static_cast<std::uint32_t>(problem.forward.size())),
        progress_(problem),
        count_(stages_),
        free_(stages_, 0),
        lanes_(stages_) {}

  VocabularyLanes play() {
    events_.push(0);
    while (!events_.empty()) {
      const Seconds now = events_.top();
      while (!events_.empty() && events_.top() <= now) events_.pop();
      // A pass of no length lets others start at once.
      for (bool acted = true; acted;) {
        acted = false;
        for (std::uint32_t s = 0; s < stages_; ++s) acted = act(s, now) || acted;
      }
    }
    return std::move(lanes_);
  }

 private:
  bool may(VocabularyOp op, std::uint32_t s) const {
    const std::uint32_t m = count_[s][at(op)];
    if (m == problem_.microbatches) return false;
    if (op != VocabularyOp::forward) return true;
    return m - count_[s][at(VocabularyOp::backward)] <
           stages_ - s + static_cast<std::uint32_t>(problem_.barriers);
  }

  bool act(std::uint32_t s, Seconds now) {
    if (free_[s] > now) return false;
    for (const VocabularyOp op : all_ops) {
      if (!may(op, s)) continue;
      const VocabularyPass pass{op, s, count_[s][at(op)]};
      const Seconds ready = progress_.arrival(pass);
      if (ready > now) continue;  // the end of what it waits for is an event
      ++count_[s][at(op)];
      free_[s] = now + progress_.seconds(pass);
      progress_.note(pass, free_[s]);
      lanes_[s].push_back(pass);
      events_.push(free_[s]);
      return true;
    }
    return false;
  }

  const VocabularyProblem& problem_;
  std::uint32_t stages_;
  Progress progress_;
  std::vector<std::array<std::uint32_t, all_ops.size()>> count_;  ///< by stage: passes started
  std::vector<Seconds> free_;
  std::priority_queue<Seconds, std::vector<Seconds>, std::greater<>> events_;
  VocabularyLanes lanes_;
};

}  // namespace

std::string to_string(const VocabularyPass& pass) {
  constexpr std::array letters{'F', 'B', 'S', 'T'};
  return fmt::format("{}{}.{}", letters[at(pass.op)], pass.stage, pass.microbatch);
}

VocabularyLanes vocabulary_order(const VocabularyProblem& problem) {
  check(problem);
  VocabularyProblem still = problem;
  still.transfer.assign(problem.transfer.size(), 0);
  still.broadcast = still.barrier = still.reduce = 0;
  return Greedy(still).play();
}

VocabularyRun play_vocabulary_parallel(const VocabularyProblem& problem) {
  const VocabularyLanes lanes = vocabulary_order(problem);
  Progress progress(problem);
  VocabularyRun run;
  run.stages.resize(lanes.size());
  run.in_flight.assign(lanes.size(), 0);
  std::vector<std::uint32_t> held(lanes.size(), 0);
  std::vector<Seconds> free(lanes.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t s = 0; s < lanes.size(); ++s)
      while (run.stages[s].size() < lanes[s].size()) {
        const VocabularyPass& pass = lanes[s][run.stages[s].size()];
        const Seconds ready = progress.arrival(pass);
        if (ready == unknown) break;
        const Seconds begin = std::max(free[s], ready);
        free[s] = begin + progress.seconds(pass);
        progress.note(pass, free[s]);
        run.stages[s].push_back({pass, begin, free[s]});
        run.seconds = std::max(run.seconds, free[s]);
        if (pass.op == VocabularyOp::forward)
          run.in_flight[s] = std::max(run.in_flight[s], ++held[s]);
        if (pass.op == VocabularyOp::backward) --held[s];
        moved = true;
      }
  }
  for (std::size_t s = 0; s < lanes.size(); ++s)
    EXPECTS(run.stages[s].size() == all_ops.size() * problem.microbatches);
  return run;
}

VocabularySeconds vocabulary_seconds(const BlockShape& shape,
                                     const BlockCut& cut,
                                     const AcceleratorRates& rates,
                                     std::uint32_t stages,
                                     VocabularyBarriers barriers) {
  EXPECTS(stages > 0);
  BlockShape part = shape;
  part.vocabulary = std::ceil(shape.vocabulary / stages);
  const LayerSeconds own = split_output_seconds(part, cut, rates);
  if (barriers == VocabularyBarriers::two)
    return {own.forward, own.backward_input + own.backward_weight};
  return {own.forward + own.backward_input, own.backward_weight};
}

}  // namespace troupe
