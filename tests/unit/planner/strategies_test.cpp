#include "planner/strategies.h"

#include <algorithm>
#include <random>

#include "planner/plan_changes.h"
#include "planner/plan_measures.h"
#include "planner/schedules.h"
#include "planner/step_costs.h"
#include "tests/support/catch.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

struct Problem {
  ModelSpec model;
  ModelProfile profile = round_profile();
  ClusterSpec cluster;
  PlanOptions options;
  PlanRequest request() const { return {model, cluster, profile, options}; }
};

Problem problem(std::uint32_t blocks, const std::vector<double>& speeds, std::uint32_t batches) {
  return {small_model(blocks), round_profile(), cluster_of(speeds), options_of(batches)};
}

/// Seconds of the busiest stage of one microbatch.
Seconds slowest_stage(const StrategyOutcome& outcome, const Problem& given) {
  REQUIRE(outcome.plan);
  Seconds most = 0;
  for (const StagePlan& stage : outcome.plan->stages) {
    const LayerSeconds one = stage_seconds(given.cluster.devices[stage.device.index()], given.model,
                                           given.profile, stage.layers, DType::f32);
    most = std::max(most, one.forward + one.backward_input + one.backward_weight);
  }
  return most;
}

/// Whether these stages fit, by the walk along the schedule.
bool stages_fit(const Problem& given, const std::vector<StagePlan>& stages) {
  StageMap map;
  for (const StagePlan& stage : stages) map.device_of_stage.push_back(stage.device);
  map.device_count = static_cast<std::uint32_t>(given.cluster.devices.size());
  map.microbatch_count = given.options.shape.microbatch_count;
  map.transfer_slots = given.options.transfer_slots;
  map.tied = given.model.tied;
  const auto schedule = make_schedule(given.options.schedule, map);
  REQUIRE(schedule.ok());
  const auto memory = memory_of(stages, *schedule, given.cluster, given.model, given.profile);
  for (std::size_t d = 0; d < memory.size(); ++d)
    if (memory[d].total() > given.cluster.devices[d].memory) return false;
  return true;
}

/// Whether any stages that continue these fit, each on a device of its own.
bool any_fit(const Problem& given, std::vector<StagePlan>& stages) {
  const std::uint32_t first = stages.empty() ? 0 : stages.back().layers.last;
  if (first == layer_count(given.model)) return stages_fit(given, stages);
  for (std::uint32_t d = 0; d < given.cluster.devices.size(); ++d) {
    if (std::any_of(stages.begin(), stages.end(),
                    [&](const StagePlan& stage) { return stage.device == DeviceId{d}; }))
      continue;
    for (std::uint32_t last = first + 1; last <= layer_count(given.model); ++last) {
      stages.push_back({{first, last}, DeviceId{d}});
      const bool fit = any_fit(given, stages);
      stages.pop_back();
      if (fit) return true;
    }
  }
  return false;
}

}  // namespace

TEST_CASE("strategies have names, and unknown ones are answered with those there are") {
  for (const Strategy strategy : all_strategies)
    CHECK(parse_strategy(to_string(strategy)).value() == strategy);
  const auto none = parse_strategy("pipedream");
  REQUIRE_FALSE(none.ok());
  CHECK(none.error().text ==
        "there is no strategy \"pipedream\"; there are even, edgepipe, hetpipe, memory-balanced, "
        "zebra, expert-parallel, auto, configured");
}

TEST_CASE("even: as many layers on every device, in the cluster's order") {
  const Problem given = problem(10, {1, 4, 2, 8}, 8);
  const StrategyOutcome outcome = run_strategy(Strategy::even, given.request());
  REQUIRE(outcome.plan);
  REQUIRE(outcome.plan->stages.size() == 4);
  for (std::uint32_t s = 0; s < 4; ++s) {
    CHECK(outcome.plan->stages[s].layers.size() == 3);
    CHECK(outcome.plan->stages[s].device == DeviceId{s});
  }
  CHECK(outcome.slowest == DeviceId{0});
  // More devices than layers: each layer has one.
  const Problem few = problem(1, {1, 1, 1, 1, 1}, 2);
  CHECK(run_strategy(Strategy::even, few.request()).plan->stages.size() == 3);
}

TEST_CASE(
    "edgepipe has the least slowest stage, configured the least step, of all single pipelines") {
  for (std::uint32_t seed = 0; seed < 25; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    std::vector<double> speeds(2 + random() % 3);
    for (double& speed : speeds) speed = 1.0 + static_cast<double>(random() % 4);
    const Problem given = problem(3 + random() % 8, speeds, 4 + random() % 8);
    const StrategyOutcome best = run_strategy(Strategy::configured, given.request());
    const StrategyOutcome bottleneck = run_strategy(Strategy::edgepipe, given.request());
    REQUIRE(best.plan);
    for (const Strategy strategy :
         {Strategy::even, Strategy::edgepipe, Strategy::memory_balanced}) {
      const StrategyOutcome other = run_strategy(strategy, given.request());
      REQUIRE(other.plan);
      CHECK(best.step <= other.step * (1 + 1e-9));
      // Its stages count what comes in over the links too, here 2 us a tensor.
      CHECK(slowest_stage(bottleneck, given) <= slowest_stage(other, given) + 10e-6);
    }
  }
}

TEST_CASE("edgepipe and hetpipe are refused only where no stages fit, under every schedule") {
  int fitting = 0, refused = 0;
  for (std::uint32_t seed = 0; seed < 60; ++seed)
    for (const ScheduleKind schedule :
         {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble_h1}) {
      INFO("seed " << seed << ", " << to_string(schedule));
      std::mt19937 random(seed);
      std::vector<double> speeds(2 + random() % 2);
      for (double& speed : speeds) speed = 1.0 + static_cast<double>(random() % 4);
      Problem given = problem(1 + random() % 4, speeds, 1 + random() % 8);
      given.model.tied = random() % 2 == 0;
      given.profile = round_profile(1, given.model.tied);
      given.cluster.nodes = {{"n0", false}, {"n1", true}};
      given.cluster.copy_between_devices = random() % 2 == 0;
      given.options.schedule = schedule;
      for (DeviceSpec& device : given.cluster.devices) {
        device.memory = 1_MiB + random() % 24 * 128 * 1024;
        device.node = NodeId{static_cast<std::uint32_t>(random() % 2)};
      }
      std::vector<StagePlan> stages;
      const bool fits = any_fit(given, stages);
      (fits ? fitting : refused) += 1;
      for (const Strategy strategy : {Strategy::edgepipe, Strategy::hetpipe}) {
        const StrategyOutcome outcome = run_strategy(strategy, given.request());
        INFO(to_string(strategy) << ": " << (outcome.refused ? outcome.refused->text : "fits"));
        CHECK(outcome.refused.has_value() == !fits);
        if (outcome.refused) CHECK(outcome.refused->code == ErrorCode::does_not_fit);
      }
    }
  CHECK(fitting > 50);
  CHECK(refused > 30);
}

TEST_CASE("a thousand layers on sixteen devices are planned by every strategy in bounded time") {
  Problem given = problem(1198, {}, 32);
  given.cluster = cluster_of({1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4}, 10_GiB);
  given.model.blocks = 1198;
  for (const Strategy strategy :
       {Strategy::edgepipe, Strategy::hetpipe, Strategy::memory_balanced}) {
    INFO(to_string(strategy));
    CHECK_FALSE(run_strategy(strategy, given.request()).refused);
  }
}

TEST_CASE("memory-balanced fills the fullest device less than any other strategy") {
  Problem given = problem(14, {4, 2, 1, 1}, 8);
  for (std::size_t d = 0; d < 4; ++d) given.cluster.devices[d].memory = (4 + 4 * d) * 4_MiB;
  const StrategyOutcome balanced = run_strategy(Strategy::memory_balanced, given.request());
  REQUIRE(balanced.plan);
  CHECK(balanced.plan->stages.front().device == DeviceId{3});
  for (const Strategy strategy : {Strategy::even, Strategy::edgepipe, Strategy::configured}) {
    const StrategyOutcome other = run_strategy(strategy, given.request());
    if (other.plan) CHECK(balanced.memory_share <= other.memory_share);
  }
}

TEST_CASE("memory-balanced says why it leaves devices out") {
  Problem given = problem(2, {1, 1}, 8);
  given.cluster.devices[1].memory = 2_MiB;  // its workspace and buffers would fill it more
  const StrategyOutcome one = run_strategy(Strategy::memory_balanced, given.request());
  REQUIRE(one.plan);
  REQUIRE(one.plan->stages.size() == 1);
  const auto said = [](const StrategyOutcome& outcome) {
    return std::any_of(
        outcome.plan->notes.begin(), outcome.plan->notes.end(), [](const PlanNote& note) {
          return note.kind == NoteKind::stages &&
                 note.text.find("; on 1 of 2 devices, as more stages have more buffers") !=
                     std::string::npos;
        });
  };
  CHECK(said(one));
  given.cluster.devices[1].memory = given.cluster.devices[0].memory = 8_MiB;
  const StrategyOutcome both = run_strategy(Strategy::memory_balanced, given.request());
  REQUIRE(both.plan);
  CHECK(both.plan->stages.size() == 2);
  CHECK_FALSE(said(both));
}

TEST_CASE("hetpipe prices replicas; zebra without experts is refused with the reason") {
  const Problem given = problem(6, {2, 2, 1, 1}, 12);
  const StrategyOutcome replicas = run_strategy(Strategy::hetpipe, given.request());
  REQUIRE(replicas.workers);
  std::uint32_t shared = 0;
  for (const VirtualWorker& worker : replicas.workers->workers) shared += worker.share;
  CHECK(shared == 12);
  CHECK(replicas.memory_share > 0);
  CHECK(replicas.memory_share <= 1);
  const StrategyOutcome zebra = run_strategy(Strategy::zebra, given.request());
  REQUIRE(zebra.refused);
  CHECK(zebra.refused->text.find("no experts") != std::string::npos);
}

TEST_CASE(
    "a strategy that does not fit is refused as the plan would be, an impossible request too") {
  Problem given = problem(6, {1, 1}, 4);
  given.cluster.devices[0].memory = 1_MiB;
  const StrategyOutcome even = run_strategy(Strategy::even, given.request());
  REQUIRE(even.refused);
  CHECK(even.refused->code == ErrorCode::does_not_fit);
  CHECK(run_strategy(Strategy::configured, given.request()).plan);
  given.cluster.devices[0].memory = 0;
  for (const Strategy strategy : all_strategies) {
    const StrategyOutcome none = run_strategy(strategy, given.request());
    REQUIRE(none.refused);
    CHECK(none.refused->code == ErrorCode::invalid_input);
  }
}

TEST_CASE("the idle share of a strategy is what its devices do not compute") {
  const Problem given = problem(2, {1, 1}, 4);
  const StrategyOutcome outcome = run_strategy(Strategy::even, given.request());
  REQUIRE(outcome.plan);
  const auto busy = busy_of_devices(*outcome.plan);
  CHECK(outcome.bubble == Approx(1 - (busy[0] + busy[1]) / (2 * outcome.step)));
  CHECK(outcome.slowest_busy == std::max(busy[0], busy[1]));
}

TEST_CASE("what a change would buy is the plan with the change") {
  Problem given = problem(12, {1, 2, 4}, 8);
  given.cluster.devices[2].memory = 6_MiB;  // the fastest holds few layers
  const StrategyOutcome plan = run_strategy(Strategy::configured, given.request());
  REQUIRE(plan.plan);
  const PlanReasons reasons = reasons_of(plan, given.request());
  CHECK(reasons.fullest == DeviceId{2});
  CHECK(reasons.memory_binds);
  ClusterSpec more = given.cluster;
  more.devices[2].memory += 1_GiB;
  REQUIRE(reasons.changes.front().step);
  CHECK(*reasons.changes.front().step ==
        make_plan(given.model, more, given.profile, given.options)->predicted_step);
  CHECK(*reasons.changes.front().step < plan.step);
  // One more device of each kind: three kinds.
  CHECK(std::count_if(reasons.changes.begin(), reasons.changes.end(), [](const PlanChange& one) {
          return one.change.rfind("one more device like dev", 0) == 0;
        }) == 3);
  more = given.cluster;
  more.devices.push_back(more.devices[2]);
  CHECK(*reasons.changes.back().step ==
        make_plan(given.model, more, given.profile, given.options)->predicted_step);
}

TEST_CASE("what a change would buy is asked of the strategy that made the plan") {
  Problem given = problem(10, {1, 4, 2}, 8);
  given.cluster.devices[1].memory = 5_MiB;
  for (const Strategy strategy : {Strategy::even, Strategy::hetpipe}) {
    const StrategyOutcome outcome = run_strategy(strategy, given.request());
    REQUIRE_FALSE(outcome.refused);
    const PlanReasons reasons = reasons_of(outcome, given.request());
    CHECK(reasons.busy == outcome.slowest_busy);
    CHECK(reasons.share == outcome.memory_share);
    ClusterSpec more = given.cluster;
    more.devices[reasons.fullest.index()].memory += 1_GiB;
    const StrategyOutcome again =
        run_strategy(strategy, {given.model, more, given.profile, given.options});
    REQUIRE_FALSE(again.refused);
    CHECK(*reasons.changes.front().step == again.step);
    more = given.cluster;
    more.devices.push_back(more.devices[2]);
    CHECK(*reasons.changes.back().step ==
          run_strategy(strategy, {given.model, more, given.profile, given.options}).step);
  }
}

TEST_CASE("configured: the pinned stages where there are some, else what the search finds") {
  Problem given = problem(10, {1, 4, 2}, 8);
  const StrategyOutcome best = run_strategy(Strategy::configured, given.request());
  CHECK(best.plan == *make_plan(given.model, given.cluster, given.profile, given.options));
  given.options.pinned = stages_of({6, 3, 3});
  const StrategyOutcome pinned = run_strategy(Strategy::configured, given.request());
  REQUIRE(pinned.plan);
  CHECK(pinned.plan->stages == given.options.pinned);
  CHECK(pinned.step > best.step);
}
