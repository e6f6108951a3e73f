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
