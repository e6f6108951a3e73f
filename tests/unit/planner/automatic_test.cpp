/// `auto` against every other strategy, and what it says of what does not train yet.
#include "planner/automatic.h"

#include <random>

#include "planner/plan_changes.h"
#include "planner/plan_choice.h"
#include "tests/support/catch.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

struct Problem {
  ModelSpec model;
  ClusterSpec cluster;
  ModelProfile profile;
  PlanOptions options;
  PlanRequest request() const { return {model, cluster, profile, options}; }
};

Problem random_problem(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto pick = [&](int from, int to) {
    return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
  };
  std::vector<double> speeds(static_cast<std::size_t>(pick(1, 7)));
  for (double& speed : speeds) speed = pick(1, 3);
  Problem made{small_model(static_cast<std::uint32_t>(pick(2, 8))), cluster_of(speeds),
               round_profile(pick(2, 20) / 10.0),
               options_of(static_cast<std::uint32_t>(pick(2, 9)))};
  for (DeviceSpec& device : made.cluster.devices)
    device.memory = Bytes{1024} * static_cast<Bytes>(pick(1500, 6000));
  if (pick(0, 1) > 0) {
    made.cluster.nodes[0].host = {Bytes{1024} * static_cast<Bytes>(pick(2000, 20000)), 4e9};
    for (DeviceSpec& device : made.cluster.devices) device.host_link = {1e-6, 1e9};
  }
  return made;
}

}  // namespace

TEST_CASE("auto is as quick as every other strategy, and fits where any does") {
  int beyond = 0, trained = 0;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    const Problem given = random_problem(seed);
    const StrategyOutcome best = run_strategy(Strategy::automatic, given.request());
    CHECK(best.strategy == Strategy::automatic);
    for (const Strategy strategy : all_strategies) {
      INFO(to_string(strategy));
      const StrategyOutcome other = run_strategy(strategy, given.request());
      if (other.refused) continue;
      REQUIRE_FALSE(best.refused);
      CHECK(best.step <= other.step * (1 + 1e-9));
    }
    if (best.refused) {
      CHECK(best.refused->code == ErrorCode::does_not_fit);
      continue;
    }
    CHECK(best.memory_share <= 1);
    CHECK(best.bubble >= -1e-9);
    CHECK(best.slowest_busy <= best.step * (1 + 1e-9));
    trained += best.plan ? 1 : 0;
    beyond += best.joint ? 1 : 0;
  }
  CHECK(trained > 5);
  CHECK(beyond > 15);
}

TEST_CASE("exact joint plans leave nothing to hetpipe") {
  int compared = 0;
  for (std::uint32_t seed = 100; seed < 260; ++seed) {
    INFO("seed " << seed);
    const Problem given = random_problem(seed);
    const StrategyOutcome workers = run_strategy(Strategy::hetpipe, given.request());
    const auto joint = joint_plan(given.model, given.cluster, given.profile, given.options);
    if (!joint || !joint->exact || !workers.workers) continue;
    ++compared;
    CHECK(joint->step <= workers.step * (1 + 1e-9));
  }
  CHECK(compared > 10);
}

TEST_CASE("auto plans what does not train: it says what, and what more memory would buy") {
  Problem given{small_model(6), cluster_of({1.0}), round_profile(), options_of(4)};
  given.cluster.devices[0].memory = 3'000_KiB;  // the states alone take 5 MiB
  const StrategyOutcome plain = run_strategy(Strategy::automatic, given.request());
  REQUIRE(plain.refused);
  CHECK(plain.refused->code == ErrorCode::does_not_fit);
  given.cluster.nodes[0].host = {8_MiB, 4e9};
  given.cluster.devices[0].host_link = {1e-6, 1e9};
  const StrategyOutcome moved = run_strategy(Strategy::automatic, given.request());
  REQUIRE(moved.joint);
  CHECK_FALSE(moved.joint->trains());
  CHECK(untrained_text(*moved.joint, given.cluster).rfind("dev0: ", 0) == 0);
  CHECK(untrained_text(*moved.joint, given.cluster).find("in host memory") != std::string::npos);
  const PlanReasons reasons = reasons_of(moved, given.request());
  CHECK(reasons.memory_binds);  // with 1 GiB more nothing has to move
  REQUIRE(reasons.changes.front().step);
  CHECK(*reasons.changes.front().step < moved.step);
  CHECK(std::any_of(reasons.changes.begin(), reasons.changes.end(), [](const PlanChange& one) {
    return one.change == "1 GiB more host memory on n0";
  }));
}

TEST_CASE("auto chooses open microbatches for what does not train too") {
  Problem given{small_model(6), cluster_of({1.0, 1.5}), round_profile(), options_of(2)};
  for (DeviceSpec& device : given.cluster.devices) device.memory = 8_MiB;
  const ProfileAt at = [&](const StepShape& shape) {
    ModelProfile scaled = given.profile;
    for (LayerProfile* layer : {&scaled.embedding, &scaled.block, &scaled.head})
      for (OpCount* count : {&layer->forward, &layer->backward_input, &layer->backward_weight})
        count->matmul_flops *= shape.microbatch_size / 4.0;
    return scaled;
  };
  given.options.choose_microbatches = true;
  const PlanRequest open{given.model, given.cluster, given.profile, given.options, at};
  const auto joint = joint_plan(open.model, open.cluster, open.profile, open.options, at);
  REQUIRE(joint);
  for (const StepShape& shape : tried_shapes(given.options.shape)) {
    PlanOptions fixed = given.options;
    fixed.choose_microbatches = false;
    fixed.shape = shape;
    const auto one = joint_plan(open.model, open.cluster, at(shape), fixed);
    if (one) CHECK(joint->step <= one->step * (1 + 1e-9));
  }
  CHECK(joint->shape != given.options.shape);
}
