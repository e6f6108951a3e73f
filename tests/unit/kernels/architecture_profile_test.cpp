// Profiles counted from shapes against those of the meta run.
#include "planner/architecture_profile.h"

#include "kernels/attention.h"
#include "kernels/stage.h"
#include "planner/trainable.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

struct Both {
  ModelProfile run, counted;
};

Both both(bool llama, bool tied, DType compute) {
  ModelSpec model = llama ? tiny_llama(tied) : tiny_gpt2(tied);
  model.width = 256;
  model.heads = 4;
  model.kv_heads = llama ? 2 : 4;
  model.ffn_width = 768;
  model.vocabulary = 2048;
  model.context = 128;
  StepShape shape = tiny_shape(4, 4, compute);
  shape.sequence_length = 128;
  return {profile_model(model, shape), architecture_profile(architecture_of(model), shape)};
}

double ratio(double counted, double run) {
  return run == 0 ? (counted == 0 ? 1 : 1e9) : counted / run;
}

void check_work(const OpCount& counted, const OpCount& run, double bytes) {
  CHECK(counted.matmul_flops == Approx(run.matmul_flops).epsilon(1e-12));
  CHECK(ratio(counted.other_flops, run.other_flops) == Approx(1).margin(0.15));
  CHECK(ratio(static_cast<double>(counted.bytes_moved), static_cast<double>(run.bytes_moved)) ==
        Approx(1).margin(bytes));
}

}  // namespace

TEST_CASE("layers counted from their shape do the work of those that run") {
  const bool llama = GENERATE(false, true);
  const bool tied = GENERATE(false, true);
  const DType compute = GENERATE(DType::f32, DType::bf16);
  CAPTURE(llama, tied, compute == DType::bf16);
  const Both b = both(llama, tied, compute);
  for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head}) {
    const LayerProfile& counted = b.counted.of(kind);
    const LayerProfile& run = b.run.of(kind);
    CAPTURE(static_cast<int>(kind));
    CHECK(counted.kind == kind);
    check_work(counted.forward, run.forward, 0.35);
    check_work(counted.backward_input, run.backward_input, 0.35);
    check_work(counted.backward_weight, run.backward_weight, 0.35);
    check_work(counted.norm, run.norm, 0.01);
    check_work(counted.update, run.update, 0.01);
    CHECK(counted.forward.launches <= run.forward.launches + 3);
    CHECK(run.forward.launches <= counted.forward.launches + 3);
  }
}

TEST_CASE("layers counted from their shape hold the bytes of those that run") {
  const bool llama = GENERATE(false, true);
  const bool tied = GENERATE(false, true);
  const DType compute = GENERATE(DType::f32, DType::bf16);
  CAPTURE(llama, tied, compute == DType::bf16);
  const Both b = both(llama, tied, compute);
  for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head}) {
    const LayerProfile& counted = b.counted.of(kind);
    const LayerProfile& run = b.run.of(kind);
    CAPTURE(static_cast<int>(kind));
    const auto close = [](Bytes one, Bytes other) {
      return ratio(static_cast<double>(one), static_cast<double>(other));
    };
    CHECK(close(counted.weight_bytes, run.weight_bytes) == Approx(1).margin(0.005));
    CHECK(close(counted.gradient_bytes, run.gradient_bytes) == Approx(1).margin(0.005));
    CHECK(close(counted.optimizer_bytes, run.optimizer_bytes) == Approx(1).margin(0.005));
    CHECK(counted.shared_weight_bytes == run.shared_weight_bytes);
    CHECK(counted.shared_optimizer_bytes == run.shared_optimizer_bytes);
    CHECK(counted.saved_bytes == run.saved_bytes);
    CHECK(counted.deferred_bytes == run.deferred_bytes);
    CHECK(counted.output_bytes == run.output_bytes);
    // Less the scratch of attention's threads.
    const Bytes scratch =
        kind == LayerKind::block
            ? kernels::attention_workspace({4, 128, 4, llama ? 2u : 4u, 64}, compute, true)
            : 0;
    CHECK(counted.backward_workspace_bytes + scratch == run.backward_workspace_bytes);
  }
  CHECK(b.counted.head.forward_workspace_bytes ==
        Approx(b.run.head.forward_workspace_bytes).epsilon(0.02));
}

TEST_CASE("a dense model gets the same plan by its shape as by its layers") {
  const bool llama = GENERATE(false, true);
  const bool tied = GENERATE(false, true);
  const DType compute = GENERATE(DType::f32, DType::bf16);
  ModelSpec model = llama ? tiny_llama(tied) : tiny_gpt2(tied);
  model.blocks = GENERATE(6u, 13u);
  model.width = 1024;
  model.heads = model.kv_heads = 16;
  model.ffn_width = llama ? 2816 : 4096;
  model.vocabulary = 32000;
  model.context = 512;
  PlanOptions options;
  options.shape = tiny_shape(8, 8, compute);
  options.shape.sequence_length = 512;
  options.schedule = GENERATE(ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble_h1);
  CAPTURE(llama, tied, model.blocks, compute == DType::bf16, to_string(options.schedule));
  ClusterSpec cluster;
  cluster.nodes = {{"here", false}, {"there", true}};
  cluster.same_process = {10e-6, 12e9};
  cluster.between_processes = {50e-6, 1.2e9};
  for (const double speed : {1.0, 2.5, 4.0}) {
    DeviceSpec device;
    device.name = "d" + std::to_string(cluster.devices.size());
    device.node = NodeId{speed > 2 ? 1u : 0u};
    device.kind = DeviceKind::emulated;
    device.memory = 16_GiB;
    device.rates = {5e12 * speed, 20e12 * speed, 5e12 * speed, 300e9 * speed, 10e-6, 20e-6};
    cluster.devices.push_back(device);
  }
  const auto run = make_plan(model, cluster, profile_model(model, options.shape), options);
  const auto counted = make_plan(
      model, cluster, architecture_profile(architecture_of(model), options.shape), options);
  REQUIRE(run.ok());
  REQUIRE(counted.ok());
  CHECK(counted->stages == run->stages);
  CHECK(counted->predicted_step == Approx(run->predicted_step).epsilon(0.1));
  for (std::size_t d = 0; d < run->memory.size(); ++d)
    CHECK(static_cast<double>(counted->memory[d].total()) ==
          Approx(static_cast<double>(run->memory[d].total())).epsilon(0.05));
}
