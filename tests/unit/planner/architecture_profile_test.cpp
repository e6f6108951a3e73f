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

namespace {

/// Products of a block for one token, in parameters, and what attention multiplies beside them.
struct HandCount {
  const char* name;
  double dense, expert, experts, top_k;
  double scores;  ///< heads x (width of a query + width of a value)
  double width, inner;
};

const HandCount hand_counts[] = {
    {"mixtral-8x7b",
     4096.0 * (4096 + 2 * 1024) + 4096.0 * 4096 + 4096 * 8,  // queries, keys, values; out; router
     3 * 4096.0 * 14336, 8, 2, 32 * (128 + 128), 4096, 14336},
    {"deepseek-v2-lite",
     2048.0 * 16 * 192 + 2048.0 * (512 + 64) + 512.0 * 16 * (128 + 128) + 16 * 128 * 2048.0 +
         3 * 2048.0 * 2816 + 2048 * 64,
     3 * 2048.0 * 1408, 64, 6, 16 * (192 + 128), 2048, 1408}};

}  // namespace

TEST_CASE("experts and the rest of a block are the block, each as counted by hand") {
  for (const HandCount& hand : hand_counts) {
    CAPTURE(hand.name);
    const Architecture model = model_named(hand.name);
    const ModelProfile profile = architecture_profile(model, shape_of(1));
    REQUIRE(profile.experts);
    const ExpertPart& part = *profile.experts;
    CHECK(part.experts == hand.experts);
    CHECK(part.top_k == hand.top_k);
    const double tokens = 2048, rows = tokens * hand.top_k;
    CHECK(part.forward.matmul_flops == Approx(2 * rows * hand.expert));
    CHECK(part.backward_input.matmul_flops == Approx(2 * rows * hand.expert));
    CHECK(part.backward_weight.matmul_flops == Approx(2 * rows * hand.expert));
    // A token sees itself and what is before it.
    const double pairs = tokens * (tokens + 1) / 2;
    CHECK((profile.block.forward - part.forward).matmul_flops ==
          Approx(2 * tokens * hand.dense + 2 * pairs * hand.scores));
    // Both products of all experts, no others, are the experts' launches.
    CHECK(part.forward.launches == 2);
    CHECK(part.backward_weight.launches == 2);
    // f32 weights, gradients and two moments, and the copy in bf16.
    CHECK(part.state_bytes == static_cast<Bytes>(18 * hand.expert));
    CHECK(part.gradient_bytes == static_cast<Bytes>(4 * hand.expert));
    const LayerProfile& block = profile.block;
    const double state =
        static_cast<double>(block.weight_bytes + block.gradient_bytes + block.optimizer_bytes);
    CHECK(state - hand.experts * static_cast<double>(part.state_bytes) ==
          Approx(18 * hand.dense).epsilon(0.001));
    CHECK(part.exchange_bytes == static_cast<Bytes>(2 * rows * hand.width));
    CHECK(part.kept_bytes == static_cast<Bytes>(2 * rows * (3 * hand.inner + 2 * hand.width)));
    CHECK(part.kept_bytes < block.saved_bytes);
    CHECK(part.workspace_bytes < block.backward_workspace_bytes);
  }
}

TEST_CASE("which blocks have experts stands beside them") {
  const auto blocks = architecture_profile(model_named("deepseek-v2-lite"), shape_of(1)).experts;
  REQUIRE(blocks);
  CHECK(blocks->blocks.front() == 1);
  CHECK(blocks->blocks.size() == 26);
  CHECK(architecture_profile(model_named("mixtral-8x7b"), shape_of(1)).experts->blocks.size() ==
        32);
  CHECK_FALSE(architecture_profile(model_named("llama-3-8b"), shape_of(1)).experts);
}
