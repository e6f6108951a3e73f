#include "planner/drift.h"

#include "planner/step_costs.h"
#include "tests/support/catch.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Three alike devices with two blocks each and slow links; costs can be changed before they play.
struct ThreeStages {
  ClusterSpec cluster = cluster_of({1, 1, 1});
  Plan plan;
  StepCosts costs;

  ThreeStages() {
    cluster.same_process = {1e-3, 0};
    PlanOptions options = options_of(4);
    options.pinned = stages_of({3, 2, 3});
    const ModelSpec model = small_model(6);
    auto made = make_plan(model, cluster, round_profile(), options);
    REQUIRE(made.ok());
    plan = std::move(*made);
    costs = step_costs(plan.stages, cluster, model, round_profile(), DType::f32);
  }
  Drift explain(Seconds beyond = 0) const {
    const Timeline played = simulate(plan.schedule, costs);
    return explain_drift(plan.schedule, plan.timeline, played, played.makespan() + beyond);
  }
};

Drift drift_of(DriftCause cause, Seconds predicted, Seconds measured) {
  Drift drift;
  drift.cause = cause;
  drift.predicted_step = predicted;
  drift.measured_step = measured;
  return drift;
}

constexpr DriftCause slow_stage{DriftTerm::arithmetic, DeviceId{1}, DeviceId{1}, StageId{1}};
constexpr DriftCause slow_link{DriftTerm::link, DeviceId{0}, DeviceId{1}, {}};

/// Steps as a run makes them: 1 s each, `slow` times that in [first, last]; every wanted trace
/// names `cause`. Returns the steps at which a drift was told, and at which it ended.
struct Told {
  std::vector<std::uint64_t> begun, ended, traced;
};
Told run(DriftWatch& watch,
         double slow,
         std::uint64_t first,
         std::uint64_t last,
         std::uint64_t steps,
         DriftCause cause = slow_stage) {
  Told told;
  for (std::uint64_t step = 2; step <= steps; ++step) {
    const bool traced = watch.wants_trace();
    if (traced) told.traced.push_back(step);
    const Seconds seconds = step >= first && step <= last ? slow : 1.0;
    if (watch.step(seconds)) told.ended.push_back(step);
    if (traced && watch.wants_trace() && watch.traced(drift_of(cause, 1, seconds)))
      told.begun.push_back(step);
  }
  return told;
}

}  // namespace

TEST_CASE("a step that goes as planned has nothing to explain") {
  const ThreeStages run;
  const Drift drift = run.explain();
  CHECK(drift.ratio() == Approx(1));
  CHECK(drift.explained == Approx(0).margin(1e-12));
}

TEST_CASE("the term that made a step longer is named with its device") {
  ThreeStages run;
  SECTION("arithmetic of a stage") {
    LayerSeconds& stage = run.costs.stages[1];
    stage.forward *= 1.5;
    stage.backward_input *= 1.5;
    stage.backward_weight *= 1.5;
    const Drift drift = run.explain();
    CHECK(drift.cause == slow_stage);
    CHECK(drift.measured_term == Approx(1.5 * drift.predicted_term).epsilon(1e-3));
    // All of it: nothing else differs.
    CHECK(drift.explained == Approx(drift.measured_step - drift.predicted_step));
    CHECK(to_text(drift, {"a100", "t4", "v100"}).find("arithmetic of stage 1 on t4 (d1) takes") !=
          std::string::npos);
  }
  SECTION("a link") {
    run.costs.transfer_forward[0] *= 8;
    const Drift drift = run.explain();
    CHECK(drift.cause == slow_link);
    CHECK(drift.measured_term == Approx(8 * drift.predicted_term));
    CHECK(to_text(drift, {"a100", "t4", "v100"})
              .find("link a100 (d0) > t4 (d1) takes 32.0 ms a "
                    "step, 8.00 x the plan's") != std::string::npos);
  }
  SECTION("the optimizer") {
    run.costs.stages[2].update *= 400;
    const Drift drift = run.explain();
    CHECK(drift.cause == DriftCause{DriftTerm::optimizer, DeviceId{2}, DeviceId{2}, StageId{2}});
    CHECK(to_text(drift, {}).find("optimizer of stage 2 on d2 takes") != std::string::npos);
    CHECK(to_text(drift, {"a", "b", "c"}, {"x", "x", "y"}).find("on c (d2) of node y takes") !=
          std::string::npos);
  }
  SECTION("time between actions") {
    const Drift drift = run.explain(0.25 * run.plan.predicted_step);
    CHECK(drift.cause.term == DriftTerm::overhead);
    CHECK(drift.measured_term == Approx(0.25 * run.plan.predicted_step));
    CHECK(to_text(drift, {}).find("which the plan does not have") != std::string::npos);
  }
  SECTION("of two, the one that the step waits for") {
    // Stage 1 loses more, and it is on the critical path; the link's loss hides behind it.
    run.costs.stages[1].forward *= 2;
    run.costs.transfer_backward[1] *= 1.1;
    CHECK(run.explain().cause == slow_stage);
  }
  SECTION("a stage that is faster than planned") {
    for (LayerSeconds& stage : run.costs.stages) stage.backward_weight *= 0.5;
    run.costs.stages[1].forward *= 0.2;
    const Drift drift = run.explain();
    CHECK(drift.ratio() < 0.9);
    CHECK(drift.cause.term == DriftTerm::arithmetic);
    CHECK(drift.explained < 0);
  }
}

TEST_CASE("overhead names the device before whose actions time passes") {
  const ThreeStages run;
  // Device 2 begins each of its actions 3 ms after everything it needs is there: what the schedule
  // gives when its actions are that much longer, with their begins moved.
  Timeline played = simulate(run.plan.schedule, [&](const Action& action) {
    const bool late = run.plan.schedule.stages.device_of_stage[action.stage.index()].value == 2 &&
                      action.op != Op::transfer_backward;
    return run.costs.of(action) + (late ? 3e-3 : 0);
  });
  for (Span& span : played.spans)
    if (span.lane == "d2") span.begin += 3e-3;
  const Drift drift =
      explain_drift(run.plan.schedule, run.plan.timeline, played, played.makespan());
  CHECK(drift.cause.term == DriftTerm::overhead);
  CHECK(drift.cause.device == DeviceId{2});
}

TEST_CASE("L024 a slow stage is flagged within five steps, and the flag clears within five") {
  DriftWatch watch(1);
  const Told told = run(watch, 1.3, 20, 40, 80);
  REQUIRE(told.begun.size() == 1);
  CHECK(told.begun[0] >= 20);
  CHECK(told.begun[0] < 25);
  REQUIRE(told.ended.size() == 1);
  CHECK(told.ended[0] > 40);
  CHECK(told.ended[0] <= 45);
  CHECK_FALSE(watch.in_force());
  // What is known is looked at less and less often.
  CHECK(told.traced.size() <= 8);
}

TEST_CASE("a drift is told once, and again when its cause changes") {
  DriftWatch watch(1);
  CHECK(run(watch, 1.5, 1, 1000, 200).begun.size() == 1);
  CHECK(watch.in_force() == slow_stage);
  const Told changed = run(watch, 1.5, 1, 1000, 400, slow_link);
  CHECK(changed.begun.size() == 1);
  CHECK(changed.ended.empty());
  CHECK(watch.in_force() == slow_link);
}

TEST_CASE("short disturbances, small ones and causes that do not agree are no drift") {
  DriftWatch watch(1);
  SECTION("two slow steps in a row") {
    CHECK(run(watch, 10, 20, 21, 60).traced.empty());
  }
  SECTION("9 percent for ever") {
    CHECK(run(watch, 1.09, 1, 1000, 100).traced.empty());
  }
  SECTION("another cause each time") {
    int news = 0;
    for (int i = 0; i < 200; ++i) {
      const bool traced = watch.wants_trace();
      CHECK_FALSE(watch.step(1.5));
      if (traced)
        news += watch.traced(drift_of(i % 2 == 0 ? slow_stage : slow_link, 1, 1.5)) ? 1 : 0;
    }
    CHECK(news == 0);
  }
}

TEST_CASE("steps that are faster than planned drift as well") {
  DriftWatch watch(1);
  CHECK(run(watch, 0.7, 20, 40, 60).begun.size() == 1);
}
