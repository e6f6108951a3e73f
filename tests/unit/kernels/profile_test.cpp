// Predicted bytes are the real bytes: profiles come from the code that carves the memory.
#include "kernels/stage.h"
#include "planner/stage_memory.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

MemoryPlan peaks(const ArenaUse& use) {
  const auto of = [&](MemoryCategory category) {
    return use.category_peak[static_cast<std::size_t>(category)];
  };
  return {of(MemoryCategory::weights),   of(MemoryCategory::gradients),
          of(MemoryCategory::optimizer), of(MemoryCategory::activations),
          of(MemoryCategory::workspace), of(MemoryCategory::transfer)};
}

}  // namespace

TEST_CASE("a stage takes exactly the bytes that its layers' profiles say") {
  const bool llama = GENERATE(false, true);
  const bool tied = GENERATE(false, true);
  const DType compute = GENERATE(DType::f32, DType::bf16);
  const std::uint32_t width = GENERATE(24u, 32u);
  ModelSpec model = llama ? tiny_llama(tied) : tiny_gpt2(tied);
  model.width = width;
  model.vocabulary = 61;  // nothing is a multiple of 64 bytes by chance
  model.ffn_width = 37;
  StepShape shape = tiny_shape(2, 3, compute);
  shape.sequence_length = 11;
  const ModelProfile profile = profile_model(model, shape);
  const std::uint32_t last = layer_count(model);
  for (const LayerRange layers :
       {LayerRange{0, last}, LayerRange{0, 1}, LayerRange{1, 3}, LayerRange{0, 2},
        LayerRange{3, last}, LayerRange{last - 1, last}}) {
    for (const std::uint32_t in_flight : {1u, 3u}) {
      for (const std::uint32_t deferred : {0u, 2u}) {
        INFO("layers " << layers.first << " to " << layers.last << ", in flight " << in_flight
                       << ", deferred " << deferred);
        StageSpec spec = whole_model(model, shape);
        spec.layers = layers;
        spec.in_flight = in_flight;
        spec.deferred = deferred;
        PlainDevice real, counting(Arena::Backing::counting);
        const auto stage = make_stage(real, spec);
        const auto counted = make_stage(counting, spec);
        const MemoryPlan planned = stage_memory(model, profile, layers, in_flight, deferred);
        const MemoryPlan measured = peaks(real.arena().use());
        CHECK(measured == planned);
        CHECK(peaks(counting.arena().use()) == planned);
        CHECK(real.arena().use().peak == planned.total());
        CHECK(workspace_bytes(spec) == planned.workspace);
      }
    }
  }
}

TEST_CASE("a stage that computes again takes exactly the bytes that its layers' profiles say") {
  const bool llama = GENERATE(false, true);
  const DType compute = GENERATE(DType::f32, DType::bf16);
  ModelSpec model = llama ? tiny_llama(false) : tiny_gpt2(true);
  model.width = 24;
  model.vocabulary = 61;
  model.ffn_width = 37;
  StepShape shape = tiny_shape(2, 3, compute);
  shape.sequence_length = 11;
  const ModelProfile profile = profile_model(model, shape);
  const std::uint32_t last = layer_count(model);
  const auto total = [&](LayerRange layers, StageRecompute recompute) {
    return stage_memory(model, profile, layers, 3, 0, recompute);
  };
  for (const LayerRange layers : {LayerRange{0, last}, LayerRange{1, 3}, LayerRange{3, last}}) {
    for (const StageRecompute recompute : {StageRecompute{1, 0}, {0, 1}, {1, 1}, {0, 2}, {2, 0}}) {
      INFO("layers " << layers.first << " to " << layers.last << ": " << to_text(recompute));
      StageSpec spec = whole_model(model, shape);
      spec.layers = layers;
      spec.in_flight = 3;
      spec.recompute = recompute;
      PlainDevice real, counting(Arena::Backing::counting);
      const auto stage = make_stage(real, spec);
      const auto counted = make_stage(counting, spec);
      const MemoryPlan planned = total(layers, recompute);
      CHECK(peaks(real.arena().use()) == planned);
      CHECK(peaks(counting.arena().use()) == planned);
      CHECK(workspace_bytes(spec) == planned.workspace);
    }
    CHECK(total(layers, {0, 2}).activations < total(layers, {}).activations);
    CHECK(total(layers, {2, 0}).activations < total(layers, {0, 2}).activations);
  }
}

TEST_CASE("a split backward with recomputation is refused") {
  StageSpec spec = whole_model(tiny_gpt2(), tiny_shape(2));
  spec.recompute = {1, 0};
  spec.split_backward = true;
  spec.deferred = 1;
  PlainDevice device;
  const auto refused = Stage::create(device, spec);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::invalid_input);
  CHECK(refused.error().text.find("fused") != std::string::npos);
  CHECK(device.arena().use().in_use == 0);
}

TEST_CASE("what is computed again is counted beside the backward") {
  const bool llama = GENERATE(false, true);
  ModelSpec model = llama ? tiny_llama(false) : tiny_gpt2(false);
  const LayerProfile block = profile_model(model, tiny_shape(1, 2)).block;
  const LayerProfile full = recomputed(block, Recompute::full);
  const LayerProfile selective = recomputed(block, Recompute::selective);
  // All of the forward but the last product.
  const double rows = 2 * 16;
  const double down = 2 * rows * model.width * model.ffn_width;
  CHECK(full.again.matmul_flops == Approx(block.forward.matmul_flops - down));
  CHECK(full.again.launches < block.forward.launches);
  CHECK(selective.again.matmul_flops == 0);
  CHECK(selective.again.launches == 3);
  CHECK(selective.saved_bytes ==
        block.saved_bytes - static_cast<Bytes>(rows * 4 * (2 * model.width + model.ffn_width)));
  CHECK(full.saved_bytes == block.output_bytes);
  CHECK(full.backward_input == block.backward_input);
  CHECK(block.again == OpCount{});
  CHECK(recomputed(block, Recompute::none).saved_bytes == block.saved_bytes);
  // The roofline counts it in I.
  DeviceRates rates;
  rates.matmul_f32 = 1e9;
  rates.vector_f32 = 1e9;
  rates.memory = 1e10;
  const LayerSeconds kept = seconds_of(block, rates, DType::f32);
  const LayerSeconds again = seconds_of(full, rates, DType::f32);
  CHECK(again.backward_input ==
        Approx(kept.backward_input + seconds_of(full.again, rates, DType::f32)));
  CHECK(again.forward == kept.forward);
  CHECK(again.backward_weight == kept.backward_weight);
}

TEST_CASE("a cap one byte below the prediction is refused, the prediction itself is enough") {
  const ModelSpec model = tiny_gpt2();
  const StepShape shape = tiny_shape(2);
  const LayerRange all{0, layer_count(model)};
  const Bytes need = stage_memory(model, profile_model(model, shape), all, 1, 0).total();
  PlainDevice enough(Arena::Backing::memory, need);
  CHECK(Stage::create(enough, whole_model(model, shape)).ok());
  PlainDevice short_of_it(Arena::Backing::memory, need - 1);
  const auto refused = Stage::create(short_of_it, whole_model(model, shape));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::out_of_memory);
  CHECK(short_of_it.arena().use().in_use == 0);
}

TEST_CASE("counted work follows the shapes") {
  const ModelSpec model = tiny_gpt2(false);
  const StepShape shape = tiny_shape(1, 2);
  const ModelProfile profile = profile_model(model, shape);
  const double rows = 2 * 16;
  const double width = 32;
  // qkv, proj, up, down: 3 + 1 + 4 + 4 squares of the width; a multiply-add is two.
  const double products = 2 * rows * 12 * width * width;
  // Causal attention touches between half of and all of T x T, twice.
  const double attention = 2 * rows * 16 * width;
  CHECK(profile.block.forward.matmul_flops >= products + attention);
  CHECK(profile.block.forward.matmul_flops <= products + 2 * attention + 1);
  CHECK(profile.block.backward_weight.matmul_flops == Approx(products));
  CHECK(profile.embedding.forward.matmul_flops == 0);
  CHECK(profile.head.forward.matmul_flops == Approx(3 * 2 * rows * width * 64));
  StepShape twice = shape;
  twice.microbatch_size = 4;
  CHECK(profile_model(model, twice).block.forward.matmul_flops ==
        2 * profile.block.forward.matmul_flops);
  CHECK(profile_model(model, twice).block.weight_bytes == profile.block.weight_bytes);
}
