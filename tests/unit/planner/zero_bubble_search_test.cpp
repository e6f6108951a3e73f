/// The search against all orders there are, on small instances.
#include "planner/zero_bubble_search.h"

#include <algorithm>
#include <array>
#include <random>

#include "planner/lowering.h"
#include "planner/schedule_measures.h"
#include "planner/schedules.h"
#include "planner/simulate.h"
#include "tests/support/catch.h"

using namespace troupe;

namespace {

/// All orders of one stage within its limit.
void orders(std::vector<Action>& lane,
            std::array<std::uint32_t, 3> count,
            std::uint32_t stage,
            const ZeroBubbleProblem& problem,
            std::vector<std::vector<Action>>& out) {
  const std::uint32_t m = problem.microbatches;
  if (lane.size() == 3 * m) {
    out.push_back(lane);
    return;
  }
  constexpr std::array ops{Op::forward, Op::backward_input, Op::backward_weight};
  for (std::size_t kind = 0; kind < 3; ++kind) {
    const bool may = kind == 0
                         ? count[0] < m && count[0] + 1 - count[1] +
                                                   problem.deferred_share * (count[1] - count[2]) <=
                                               problem.in_flight_limits[stage]
                         : count[kind] < count[kind - 1];
    if (!may) continue;
    lane.push_back({ops[kind], StageId{stage}, MicrobatchId{count[kind]}});
    ++count[kind];
    orders(lane, count, stage, problem, out);
    --count[kind];
    lane.pop_back();
  }
}

Seconds span_of(Schedule schedule, const ZeroBubbleProblem& problem) {
  schedule = add_transfers(std::move(schedule));
  if (!validate(schedule)) return 1e9;
  return longest_device_span(simulate(schedule, [&](const Action& action) {
    const std::size_t s = action.stage.index();
    switch (action.op) {
      case Op::forward: return problem.forward[s];
      case Op::backward_input: return problem.backward_input[s];
      case Op::backward_weight: return problem.backward_weight[s];
      case Op::transfer_forward:
      case Op::transfer_backward: return problem.transfer;
      default: return 0.0;
    }
  }));
}

Seconds best_of_all(const ZeroBubbleProblem& problem, Schedule schedule) {
  const auto p = static_cast<std::uint32_t>(problem.forward.size());
  std::vector<std::vector<std::vector<Action>>> choices(p);
  for (std::uint32_t s = 0; s < p; ++s) {
    std::vector<Action> lane;
    orders(lane, {}, s, problem, choices[s]);
    for (auto& one : choices[s])
      for (const Op op : {Op::norm, Op::update}) one.push_back({op, StageId{s}, MicrobatchId{0}});
  }
  Seconds best = 1e9;
  std::vector<std::size_t> at(p);
  while (true) {
    for (std::uint32_t s = 0; s < p; ++s) schedule.devices[s] = choices[s][at[s]];
    best = std::min(best, span_of(schedule, problem));
    std::uint32_t s = 0;
    while (s < p && ++at[s] == choices[s].size()) at[s++] = 0;
    if (s == p) return best;
  }
}

}  // namespace

TEST_CASE("no order is better than the found one, on small instances") {
  std::size_t exact = 0;
  constexpr std::uint32_t tries = 40;
  for (std::uint32_t seed = 0; seed < tries; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int from, int to) {
      return std::uniform_int_distribution<int>(from, to)(random);
    };
    ZeroBubbleProblem problem;
    const int p = pick(1, 3);
    problem.microbatches = static_cast<std::uint32_t>(p == 3 ? 2 : pick(2, 3));
    problem.transfer = pick(0, 2);
    for (int s = 0; s < p; ++s) {
      problem.forward.push_back(pick(4, 12));
      problem.backward_input.push_back(pick(4, 12));
      problem.backward_weight.push_back(pick(2, 10));
      problem.in_flight_limits.push_back(static_cast<std::uint32_t>(pick(1, 3)));
    }
    INFO("seed " << seed << " p=" << p << " m=" << problem.microbatches);
    const Schedule found = zero_bubble_search(problem);
    REQUIRE(validate(add_transfers(found), problem.in_flight_limits).ok());
    const Seconds ours = span_of(found, problem);
    const Seconds best = best_of_all(problem, found);
    CHECK(ours >= best - 1e-9);
    CHECK(ours <= 1.05 * best);
    if (ours <= best + 1e-9) ++exact;
  }
  UNSCOPED_INFO(exact << " of " << tries << " exactly the best");
  CHECK(exact >= tries * 9 / 10);
}

TEST_CASE("memory that I frees lets more microbatches in") {
  std::size_t exact = 0, better = 0;
  constexpr std::uint32_t tries = 30;
  for (std::uint32_t seed = 0; seed < tries; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto pick = [&](int from, int to) {
      return std::uniform_int_distribution<int>(from, to)(random);
    };
    ZeroBubbleProblem problem;
    problem.microbatches = 3;
    problem.deferred_share = 0.5;
    for (int s = 0; s < 2; ++s) {
      problem.forward.push_back(pick(4, 12));
      problem.backward_input.push_back(pick(4, 12));
      problem.backward_weight.push_back(pick(2, 10));
      problem.in_flight_limits.push_back(static_cast<std::uint32_t>(pick(1, 2)));
    }
    const Schedule found = zero_bubble_search(problem);
    REQUIRE(validate(add_transfers(found)).ok());
    const Seconds ours = span_of(found, problem);
    const Seconds best = best_of_all(problem, found);
    CHECK(ours >= best - 1e-9);
    if (ours <= best + 1e-9) ++exact;
    problem.deferred_share = 1;
    if (ours < span_of(zero_bubble_search(problem), problem)) ++better;
  }
  CHECK(exact >= tries * 9 / 10);
  CHECK(better > 0);
}

TEST_CASE("memory limits hold and more memory never costs time") {
  ZeroBubbleProblem problem;
  const std::size_t p = 4;
  problem.microbatches = 12;
  problem.transfer = 0.1;
  problem.forward.assign(p, 1.0);
  problem.backward_input.assign(p, 1.1);
  problem.backward_weight.assign(p, 0.7);
  Seconds before = 1e9;
  for (const std::uint32_t limit : {1u, 2u, 4u, 6u, 8u}) {
    problem.in_flight_limits.assign(p, limit);
    const Schedule found = zero_bubble_search(problem);
    CHECK(validate(add_transfers(found), problem.in_flight_limits).ok());
    const Seconds span = span_of(found, problem);
    CHECK(span <= before + 1e-9);
    before = span;
  }
  const StageMap stages = zero_bubble_search(problem).stages;
  CHECK(before <= span_of(zero_bubble_h2(stages), problem) + 1e-9);
}
