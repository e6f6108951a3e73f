#include "planner/step_choices.h"

#include "tests/support/catch.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Work and activations grow with the microbatch.
ModelProfile profile_at(const StepShape& shape) {
  ModelProfile profile = round_profile();
  for (LayerProfile* layer : {&profile.embedding, &profile.block, &profile.head}) {
    for (OpCount* count : {&layer->forward, &layer->backward_input, &layer->backward_weight})
      count->matmul_flops *= shape.microbatch_size;
    layer->saved_bytes *= shape.microbatch_size;
    layer->output_bytes *= shape.microbatch_size;
  }
  return profile;
}

}  // namespace

TEST_CASE("the choice of microbatches and schedule is the quickest plan of them all") {
  const ModelSpec model = small_model(6);
  const ClusterSpec cluster = cluster_of({1, 1});
  PlanOptions options = options_of(1);
  options.shape.batch_size = options.shape.microbatch_size = 8;
  const ModelProfile profile = profile_at(options.shape);
  const PlanRequest request{model, cluster, profile, options, profile_at};
  const auto choices = step_choices(request, {true, true, false});
  CHECK(choices.size() == 4 * 4);  // sizes 1, 2, 4, 8; four schedules
  REQUIRE(choices.front().step);
  CHECK(choices.front().shape.microbatch_count > 1);
  for (const StepChoice& one : choices) {
    PlanOptions pinned = options;
    pinned.shape = one.shape;
    pinned.schedule = one.schedule;
    pinned.chunks = one.chunks;
    const auto plan = make_plan(model, cluster, profile_at(one.shape), pinned);
    REQUIRE(plan.ok());
    REQUIRE(one.step);
    CHECK(plan->predicted_step == Approx(*one.step).epsilon(1e-9));
    CHECK(*choices.front().step <= *one.step);
  }
  CHECK(step_choices(request, {}).size() == 1);
}

TEST_CASE("activations are computed again where keeping them does not fit") {
  const ModelSpec model = small_model(6);
  ClusterSpec cluster = cluster_of({1});
  PlanOptions options = options_of(4, ScheduleKind::gpipe);
  const ModelProfile profile = profile_at(options.shape);
  const PlanRequest roomy{model, cluster, profile, options};
  const auto quick = step_choices(roomy, {false, false, true});
  REQUIRE(quick.size() == 2);
  CHECK_FALSE(quick.front().recompute);
  // A forward more per microbatch, of all blocks: 6 of 1 ms x size 4, 4 times.
  CHECK(*quick.back().step - *quick.front().step == Approx(4 * 4 * 6e-3));
  ClusterSpec small = cluster;
  small.devices[0].memory = 8_MiB + 512_KiB;
  const PlanRequest tight{model, small, profile, options};
  const auto fitting = step_choices(tight, {false, false, true});
  CHECK(fitting.front().recompute);
  CHECK(fitting.front().step);
  CHECK_FALSE(fitting.back().step);
}

TEST_CASE("a split backward is not among the choices that compute again") {
  const ModelSpec model = small_model(6);
  const ClusterSpec cluster = cluster_of({1, 1});
  const PlanOptions options = options_of(4);
  const ModelProfile profile = profile_at(options.shape);
  const PlanRequest request{model, cluster, profile, options};
  const auto choices = step_choices(request, {false, true, true});
  CHECK(choices.size() == 4 + 3);
  for (const StepChoice& one : choices)
    CHECK_FALSE((one.recompute && one.schedule == ScheduleKind::zero_bubble_h1));
}

TEST_CASE("a layer that computes again keeps its output and takes the rest as workspace") {
  const LayerProfile block = round_profile().block;
  const LayerProfile again = recomputed(block, Recompute::full);
  CHECK(again.saved_bytes == block.output_bytes);
  CHECK(again.backward_workspace_bytes ==
        block.backward_workspace_bytes + block.saved_bytes - block.output_bytes);
  CHECK(again.again.matmul_flops == block.forward.matmul_flops);
  CHECK(again.backward_input == block.backward_input);
  CHECK(again.weight_bytes == block.weight_bytes);
}
