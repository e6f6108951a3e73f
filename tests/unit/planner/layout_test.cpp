#include "planner/layout.h"

#include <numeric>

#include "tests/support/catch.h"

using namespace troupe;

namespace {

/// The output layer costs as much as four blocks: 4 h^2 + 3 * 4 h^2 = 16 h^2 of 64 h^2.
TransformerStack stack_of(std::uint64_t layers) {
  TransformerStack model;
  model.layers = layers;
  model.block.hidden = 64;
  model.block.heads = model.block.kv_heads = 4;
  model.block.ffn = 256;
  model.block.gated = true;
  model.block.sequence = 32;
  model.block.vocabulary = 4096;
  return model;
}

}  // namespace

TEST_CASE("L004 L014 the output layer counts as the blocks it costs and may be alone on a stage") {
  using Blocks = std::vector<std::uint64_t>;
  CHECK(stages_with_output(stack_of(16), 1) == Blocks{16});
  CHECK(stages_with_output(stack_of(16), 2) == Blocks{10, 6});
  CHECK(stages_with_output(stack_of(16), 4) == Blocks{5, 5, 5, 1});
  // 16 + 4 over 8: stages are full at 2.5, 5, 7.5, ...
  CHECK(stages_with_output(stack_of(16), 8) == Blocks{3, 2, 3, 2, 3, 2, 1, 0});
  for (const std::uint64_t pipeline : {1, 3, 5, 7, 12}) {
    const Blocks blocks = stages_with_output(stack_of(37), pipeline);
    CHECK(blocks.size() == pipeline);
    CHECK(std::accumulate(blocks.begin(), blocks.end(), std::uint64_t{0}) == 37);
  }
}

TEST_CASE("blocks of a stage are given or an even share, rounded up") {
  const TransformerStack model = stack_of(10);
  Layout layout;
  layout.pipeline = 4;
  CHECK(blocks_of_stage(model, layout, 0) == 3);
  layout.stage_blocks = {4, 3, 2, 1};
  CHECK(blocks_of_stage(model, layout, 0) == 4);
  CHECK(blocks_of_stage(model, layout, 3) == 1);
}

TEST_CASE("L010 faults of a layout are named, stages that do not add up among them") {
  const TransformerStack model = stack_of(10);
  Layout layout;
  CHECK(layout_faults(model, layout).empty());
  layout.tensor = 3;
  layout.data = 2;
  layout.batch = 5;
  layout.pipeline = 11;
  const std::vector<std::string> faults = layout_faults(model, layout);
  REQUIRE(faults.size() == 4);
  CHECK(faults[0] == "3 does not divide the attention heads (4)");
  CHECK(faults[1] == "3 does not divide the feed-forward width (256)");
  CHECK(faults[2] == "2 does not divide the batch (5)");
  CHECK(faults[3] == "more stages than layers");

  layout = {};
  layout.pipeline = 2;
  layout.stage_blocks = {5, 5};
  CHECK(layout_faults(model, layout).empty());
  layout.stage_blocks = {10, 0};  // the output layer alone
  CHECK(layout_faults(model, layout).empty());
  layout.stage_blocks = {5, 4};
  CHECK(
      layout_faults(model, layout) ==
      std::vector<std::string>{"blocks are given for 2 stages and add up to 9, not for 2 and 10"});
  layout.stage_blocks = {5, 4, 1};
  CHECK(layout_faults(model, layout).size() == 1);
}
