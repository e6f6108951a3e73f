#include "apps/profile_layers.h"

#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"

using namespace troupe;
using namespace troupe::test;

TEST_CASE(
    "a configuration's layers are measured at several sizes where they are to be chosen from") {
  StepShape shape = tiny_shape(1);
  shape.batch_size = shape.microbatch_size = 64;
  const auto sizes = [&](bool open) {
    std::vector<std::uint32_t> out;
    for (const LayerCase& one : own_layers(tiny_llama(), shape, open)) {
      CHECK(one.model == tiny_llama());
      out.push_back(one.shape.microbatch_size);
    }
    return out;
  };
  CHECK(sizes(false) == std::vector<std::uint32_t>{64});
  const auto open = sizes(true);
  REQUIRE(open.size() == 3);
  CHECK(open[0] == 64);
  CHECK(open[1] < 64);
  CHECK(open[1] > 1);
  CHECK(open[2] == 1);
  shape.batch_size = shape.microbatch_size = 1;
  CHECK(sizes(true) == std::vector<std::uint32_t>{1});
}

TEST_CASE("measured layers are listed by model, each with its types") {
  const auto row = [](LayerKind kind, DType compute, ModelFamily family, std::uint32_t width) {
    return LayerRatio{{kind, compute, family, width, 64, 16, 256}, {1, 1, 1, 1, 1}};
  };
  CHECK(layers_text({row(LayerKind::block, DType::f32, ModelFamily::gpt2, 32),
                     row(LayerKind::head, DType::f32, ModelFamily::gpt2, 32),
                     row(LayerKind::block, DType::f32, ModelFamily::llama, 64),
                     row(LayerKind::block, DType::bf16, ModelFamily::gpt2, 32)}) ==
        "gpt2 of width 32 (f32, bf16), llama of width 64 (f32)");
}
