#include "planner/replan.h"

#include "planner/step_costs.h"
#include "tests/support/catch.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Eight layers over three alike devices, and a plan of them.
struct Planned {
  ModelSpec model = small_model(6);
  ClusterSpec cluster = cluster_of({1, 1, 1});
  ModelProfile profile = round_profile();
  PlanOptions options = options_of(4);
  Plan plan;

  explicit Planned(bool measured = false) {
    if (measured)
      for (DeviceSpec& device : cluster.devices)
        for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head})
          device.measured[kind] = seconds_of(profile.of(kind), device.rates, DType::f32);
    auto made = make_plan(model, cluster, profile, options);
    REQUIRE(made.ok());
    plan = std::move(*made);
  }
  PlanRequest request() const { return {model, cluster, profile, options}; }
};

Drift drift_of(DriftCause cause, double factor) {
  Drift drift;
  drift.cause = cause;
  drift.predicted_term = 10e-3;
  drift.measured_term = factor * drift.predicted_term;
  return drift;
}

constexpr DriftCause slow_device{DriftTerm::arithmetic, DeviceId{1}, DeviceId{1}, StageId{1}};

std::uint32_t layers_on(const std::vector<StagePlan>& stages, DeviceId device) {
  std::uint32_t layers = 0;
  for (const StagePlan& stage : stages)
    if (stage.device == device) layers += stage.layers.size();
  return layers;
}

}  // namespace

TEST_CASE(
    "L024 a slow device gets fewer layers in the plan that is suggested, and the gain is told") {
  for (const bool measured : {false, true}) {
    INFO("measured " << measured);
    const Planned planned(measured);
    const auto other = replan(planned.plan, planned.request(), drift_of(slow_device, 4));
    REQUIRE(other);
    CHECK(layers_on(other->stages, DeviceId{1}) < layers_on(planned.plan.stages, DeviceId{1}));
    CHECK(other->step < 0.7 * other->kept_step);
    // The stages in force take as long as they do on such a cluster, by their own simulation.
    const auto slow = cluster_with(drift_of(slow_device, 4), planned.cluster);
    REQUIRE(slow);
    const Seconds kept =
        simulate(planned.plan.schedule,
                 step_costs(planned.plan.stages, *slow, planned.model, planned.profile, DType::f32))
            .makespan();
    CHECK(other->kept_step == Approx(kept).epsilon(1e-12));
    const std::string text = to_text(*other, planned.cluster);
    INFO(text);
    CHECK(text.find("another plan would take " + format_seconds(other->step) +
                    " a step instead of " + format_seconds(other->kept_step) + ": layers 0") == 0);
  }
}

TEST_CASE("pins do not bind what is suggested") {
  Planned planned;
  planned.options.pinned = planned.plan.stages;
  const auto other = replan(planned.plan, planned.request(), drift_of(slow_device, 4));
  REQUIRE(other);
  CHECK(other->stages != planned.plan.stages);
}

TEST_CASE("what no plan can mend is not suggested") {
  const Planned planned;
  CHECK_FALSE(replan(planned.plan, planned.request(), drift_of({}, 2)));
  CHECK_FALSE(replan(planned.plan, planned.request(), drift_of(slow_device, 1.01)));
  Drift unplanned = drift_of(slow_device, 2);
  unplanned.predicted_term = 0;
  CHECK_FALSE(cluster_with(unplanned, planned.cluster));
}

TEST_CASE("a drift changes the seconds of its own term alone") {
  Planned planned(true);
  planned.cluster.devices[1].measured_by_size[LayerKind::block][1] = {3e-3, 3e-3, 3e-3, 7e-3, 7e-3};
  const LayerSeconds before = planned.cluster.devices[1].measured.at(LayerKind::block);
  const auto slow = cluster_with(drift_of(slow_device, 2), planned.cluster);
  REQUIRE(slow);
  const LayerSeconds arithmetic = slow->devices[1].measured.at(LayerKind::block);
  CHECK(arithmetic.forward == 2 * before.forward);
  CHECK(arithmetic.backward_input == 2 * before.backward_input);
  CHECK(arithmetic.backward_weight == 2 * before.backward_weight);
  CHECK(arithmetic.update == before.update);
  CHECK(slow->devices[0].measured.at(LayerKind::block).forward == before.forward);
  const LayerSeconds small = slow->devices[1].measured_by_size.at(LayerKind::block).at(1);
  CHECK(small.forward == 2 * 3e-3);
  CHECK(small.update == 7e-3);
  DriftCause updates = slow_device;
  updates.term = DriftTerm::optimizer;
  const auto slow_updates = cluster_with(drift_of(updates, 2), planned.cluster);
  REQUIRE(slow_updates);
  const LayerSeconds optimizer = slow_updates->devices[1].measured.at(LayerKind::block);
  CHECK(optimizer.forward == before.forward);
  CHECK(optimizer.norm == 2 * before.norm);
  CHECK(optimizer.update == 2 * before.update);

  ClusterSpec copied = planned.cluster;
  copied.same_process = {1e-3, 4e9};
  const auto link =
      cluster_with(drift_of({DriftTerm::link, DeviceId{0}, DeviceId{1}, {}}, 2), copied);
  REQUIRE(link);
  CHECK(link->link(DeviceId{0}, DeviceId{1}).latency == 2e-3);
  CHECK(link->link(DeviceId{0}, DeviceId{1}).bandwidth == 2e9);
  CHECK(link->link(DeviceId{1}, DeviceId{0}).latency == 1e-3);
}
