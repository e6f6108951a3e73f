#include "planner/layout.h"

#include <cmath>

namespace troupe {

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
  if (layout.pipeline == 0 || layout.chunks == 0 || layout.pipeline * layout.chunks > model.layers)
    out.push_back("more stages than layers");
  return out;
}

}  // namespace troupe
