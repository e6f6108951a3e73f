#include "planner/layer_ratios.h"

#include "tests/support/catch.h"

using namespace troupe;

namespace {

DeviceRates round_rates() {
  DeviceRates rates;
  rates.matmul_f32 = 100;
  rates.matmul_bf16 = 200;
  rates.vector_f32 = 10;
  rates.memory = 50;
  return rates;
}

/// Forward 10 s by the rates of f32, both parts of backward 20 s, norm and update 1 s.
LayerProfile block_profile() {
  LayerProfile profile;
  profile.forward.matmul_flops = 1000;
  profile.backward_input.matmul_flops = profile.backward_weight.matmul_flops = 2000;
  profile.norm.bytes_moved = profile.update.bytes_moved = 50;
  return profile;
}

LayerSize block_of(std::uint32_t width, std::uint32_t tokens = 256) {
  return {LayerKind::block, DType::f32, ModelFamily::gpt2, width, tokens, 128, 1};
}

}  // namespace

TEST_CASE("a layer of a size that was measured takes what was measured") {
  const LayerSeconds measured{15, 22, 30, 4, 0.5};
  const std::vector<LayerRatio> ratios{
      ratio_of(block_of(64), {100, 100, 100, 100, 100}, block_profile(), round_rates()),
      ratio_of(block_of(128), measured, block_profile(), round_rates())};
  CHECK(ratios[1].ratio.forward == 1.5);
  CHECK(ratios[1].ratio.norm == 4);
  const LayerSeconds same =
      seconds_by_ratios(ratios, block_of(128), block_profile(), round_rates());
  CHECK(same.forward == Approx(15));
  CHECK(same.backward_input == Approx(22));
  CHECK(same.backward_weight == Approx(30));
  CHECK(same.norm == Approx(4));
  CHECK(same.update == Approx(0.5));
}

TEST_CASE("between sizes the nearer one weighs more, in equal distance both alike") {
  const auto ratio = [](std::uint32_t width, double factor) {
    const Seconds forward = 10 * factor;
    return ratio_of(block_of(width), {forward, 20, 20, 1, 1}, block_profile(), round_rates());
  };
  const std::vector<LayerRatio> ratios{ratio(64, 4), ratio(256, 1)};
  const auto forward = [&](std::uint32_t width) {
    return seconds_by_ratios(ratios, block_of(width), block_profile(), round_rates()).forward;
  };
  CHECK(forward(128) == Approx(20));  // the geometric mean of 4 and 1, by 10 s
  CHECK(forward(90) > forward(128));
  CHECK(forward(180) < forward(128));
  CHECK(forward(180) > 10);
  // Far from all of them they are alike as well.
  CHECK(forward(1 << 20) == Approx(20).epsilon(0.2));
}

TEST_CASE("other types and kinds say nothing; other families do") {
  std::vector<LayerRatio> ratios{
      ratio_of(block_of(128), {20, 20, 20, 1, 1}, block_profile(), round_rates())};
  LayerSize wanted = block_of(128);
  wanted.compute = DType::bf16;
  CHECK(seconds_by_ratios(ratios, wanted, block_profile(), round_rates()).forward == 5);
  wanted = block_of(128);
  wanted.kind = LayerKind::head;
  CHECK(seconds_by_ratios(ratios, wanted, block_profile(), round_rates()).forward == 10);
  wanted = block_of(128);
  wanted.family = ModelFamily::llama;
  CHECK(seconds_by_ratios(ratios, wanted, block_profile(), round_rates()).forward == Approx(20));
  CHECK(seconds_by_ratios({}, wanted, block_profile(), round_rates()).forward == 10);
}

TEST_CASE("words matter to tables alone") {
  ModelSpec model;
  model.family = ModelFamily::llama;
  model.width = 96;
  model.vocabulary = 1000;
  StepShape shape{4, 2, 64, 8, DType::bf16};
  CHECK(size_of(model, shape, LayerKind::head) ==
        LayerSize{LayerKind::head, DType::bf16, ModelFamily::llama, 96, 128, 64, 1000});
  std::vector<LayerRatio> ratios{
      ratio_of(block_of(128), {10, 20, 20, 1, 1}, block_profile(), round_rates()),
      ratio_of(block_of(128), {40, 20, 20, 1, 1}, block_profile(), round_rates())};
  ratios[1].size.vocabulary = 1 << 16;
  LayerSize wanted = block_of(128);
  CHECK(seconds_by_ratios(ratios, wanted, block_profile(), round_rates()).forward == Approx(20));
  for (LayerRatio& one : ratios) one.size.kind = LayerKind::head;
  wanted.kind = LayerKind::head;
  CHECK(seconds_by_ratios(ratios, wanted, block_profile(), round_rates()).forward == Approx(10));
}
