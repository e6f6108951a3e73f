#include "planner/architecture_profile.h"

#include "planner/memory.h"
#include "planner/partition.h"
#include "planner/simulate.h"
#include "planner/stage_memory.h"
#include "planner/step_costs.h"
#include "planner/trainable.h"
#include "tests/support/catch.h"
#include "tests/support/published_models.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

Architecture model_named(const char* name) {
  return published::published_model(TROUPE_SOURCE_DIR "/tests/data", name);
}

StepShape shape_of(std::uint32_t microbatches, DType compute = DType::bf16) {
  StepShape shape;
  shape.microbatch_count = shape.batch_size = microbatches;
  shape.sequence_length = 2048;
  shape.compute = compute;
  return shape;
}

ClusterSpec accelerators(const std::vector<double>& speeds) {
  ClusterSpec cluster = cluster_of(speeds, 400_GiB);
  for (DeviceSpec& device : cluster.devices) device.rates.matmul_bf16 *= 1e5;
  for (DeviceSpec& device : cluster.devices) device.rates.vector_f32 *= 1e4;
  cluster.same_process = {2e-6, 100e9};
  return cluster;
}

}  // namespace

TEST_CASE("gradients of a profile are four bytes for each parameter of the model") {
  for (const char* name : {"llama-3-8b", "mixtral-8x7b", "deepseek-v2-lite", "gpt2"}) {
    CAPTURE(name);
    const Architecture model = model_named(name);
    const ModelSpec spec = stand_in(model);
    const ModelProfile profile = architecture_profile(model, shape_of(1));
    double bytes = 0;
    for (std::uint32_t layer = 0; layer < layer_count(spec); ++layer)
      bytes += static_cast<double>(profile.layer(spec, layer).gradient_bytes);
    // A tied table has two halves.
    const double halves =
        model.tied ? 4.0 * static_cast<double>(model.vocabulary) * model.width : 0;
    CHECK(bytes - halves ==
          Approx(4.0 * static_cast<double>(parameter_count(model))).epsilon(1e-6));
  }
}

TEST_CASE("blocks with and without experts are profiled apart") {
  const Architecture model = model_named("deepseek-v2-lite");  // the first block is dense
  const ModelProfile profile = architecture_profile(model, shape_of(1));
  REQUIRE(profile.blocks.size() == model.blocks);
  CHECK(profile.blocks[0].weight_bytes < profile.blocks[1].weight_bytes / 4);
  CHECK(profile.blocks[1].weight_bytes == profile.block.weight_bytes);
  // 2 flops a multiplied parameter and token, and the attention's.
  const LayerParameters count = block_parameters(model, 1);
  const double products = 2.0 * 2048 * static_cast<double>(count.active() - count.norms);
  CHECK(profile.block.forward.matmul_flops > 0.99 * products);
  CHECK(profile.block.forward.matmul_flops < 1.3 * products);
  CHECK(architecture_profile(model_named("mixtral-8x7b"), shape_of(1)).blocks.empty());
}

TEST_CASE("the planner finds the best cut of unlike blocks") {
  Architecture model = model_named("deepseek-v2-lite");
  model.blocks = 7;
  model.moe.first_dense_blocks = GENERATE(1u, 3u);
  const ModelSpec spec = stand_in(model);
  PlanOptions options;
  options.shape = shape_of(6);
  const ModelProfile profile = architecture_profile(model, options.shape);
  const ClusterSpec cluster = accelerators({1.0, 1.7});
  const auto plan = make_plan(spec, cluster, profile, options);
  REQUIRE(plan.ok());
  Seconds best = 1e300;
  const auto judge = [&](const std::vector<StagePlan>& stages) {
    PlanOptions pinned = options;
    pinned.pinned = stages;
    const auto made = make_plan(spec, cluster, profile, pinned);
    if (made.ok()) best = std::min(best, made->predicted_step);
  };
  const std::uint32_t layers = layer_count(spec);
  for (std::uint32_t d = 0; d < 2; ++d) {
    judge({{{0, layers}, DeviceId{d}}});
    for (std::uint32_t cut = 1; cut < layers; ++cut)
      judge({{{0, cut}, DeviceId{d}}, {{cut, layers}, DeviceId{1 - d}}});
  }
  CHECK(plan->predicted_step == Approx(best).epsilon(1e-12));
  // Each stage's memory is that of its own blocks.
  const StagePlan& last = plan->stages.back();
  Bytes weights = 0;
  for (std::uint32_t layer = last.layers.first; layer < last.layers.last; ++layer)
    weights += profile.layer(spec, layer).weight_bytes;
  CHECK(plan->memory[last.device.index()].weights == weights);
}
