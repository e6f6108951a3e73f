#include "planner/layout.h"

#include <numeric>

namespace troupe {

std::uint64_t blocks_of_stage(const TransformerStack& model,
                              const Layout& layout,
                              std::uint64_t stage) {
  if (!layout.stage_blocks.empty()) return layout.stage_blocks.at(stage);
  return (model.layers + layout.pipeline - 1) / layout.pipeline;
}

std::vector<std::uint64_t> stages_with_output(const TransformerStack& model,
                                              std::uint64_t pipeline) {
  const BlockShape& shape = model.block;
  const double block =
      4 * shape.hidden * shape.hidden + (shape.gated ? 3 : 2) * shape.ffn * shape.hidden;
  const double all = block * static_cast<double>(model.layers) + shape.vocabulary * shape.hidden;
  std::vector<std::uint64_t> out(pipeline, 0);
  std::uint64_t stage = 0;
  for (std::uint64_t layer = 1; layer <= model.layers; ++layer) {
    ++out[stage];
    const double share = all * static_cast<double>(stage + 1) / static_cast<double>(pipeline);
    if (block * static_cast<double>(layer) >= share && stage + 1 < pipeline) ++stage;
  }
  return out;
}

std::vector<std::string> layout_faults(const TransformerStack& model, const Layout& layout) {
  std::vector<std::string> out;
  const auto divides = [&out](std::uint64_t part, std::uint64_t whole, const char* what) {
    if (part == 0 || whole % part != 0)
      out.push_back(std::to_string(part) + " does not divide " + what + " (" +
                    std::to_string(whole) + ")");
  };
  const auto count = [](double value) { return static_cast<std::uint64_t>(value); };
  divides(layout.tensor, count(model.block.heads), "the attention heads");
  divides(layout.tensor, count(model.block.ffn), "the feed-forward width");
  divides(layout.data * layout.microbatch, layout.batch, "the batch");
  const bool given = !layout.stage_blocks.empty();
  if (layout.pipeline == 0 || layout.chunks == 0 ||
      (!given && layout.pipeline * layout.chunks > model.layers))
    out.push_back("more stages than layers");
  if (!given) return out;
  const std::uint64_t blocks =
      std::accumulate(layout.stage_blocks.begin(), layout.stage_blocks.end(), std::uint64_t{0});
  if (layout.stage_blocks.size() != layout.pipeline || blocks != model.layers)
    out.push_back("blocks are given for " + std::to_string(layout.stage_blocks.size()) +
                  " stages and add up to " + std::to_string(blocks) + ", not for " +
                  std::to_string(layout.pipeline) + " and " + std::to_string(model.layers));
  return out;
}

}  // namespace troupe
