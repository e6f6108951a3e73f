#include "planner/recompute.h"

#include <fmt/format.h>

#include <algorithm>

#include "planner/printable.h"

namespace troupe {

std::string_view to_string(Recompute policy) {
  if (policy == Recompute::full) return "full";
  return policy == Recompute::selective ? "selective" : "none";
}

Result<Recompute> parse_recompute(std::string_view text) {
  for (const Recompute policy : {Recompute::none, Recompute::selective, Recompute::full})
    if (to_string(policy) == text) return policy;
  return Error{ErrorCode::invalid_input,
               fmt::format("there is no recomputation \"{}\"; there are none, selective, full",
                           printable(text))};
}

Recompute StageRecompute::of(std::uint32_t i) const {
  if (i < full) return Recompute::full;
  return i - full < selective ? Recompute::selective : Recompute::none;
}

std::string to_text(const StageRecompute& recompute) {
  std::string text;
  if (recompute.full > 0) text = fmt::format("{} full", recompute.full);
  if (recompute.selective > 0)
    text += fmt::format("{}{} selective", text.empty() ? "" : ", ", recompute.selective);
  return text.empty() ? "none" : text;
}

std::uint32_t block_count(const ModelSpec& model, LayerRange layers) {
  const std::uint32_t first = std::max(layers.first, 1u);
  const std::uint32_t last = std::min(layers.last, model.blocks + 1);
  return first < last ? last - first : 0;
}

StageRecompute recompute_all(const ModelSpec& model, LayerRange layers, Recompute policy) {
  const std::uint32_t blocks = block_count(model, layers);
  return {policy == Recompute::full ? blocks : 0, policy == Recompute::selective ? blocks : 0};
}

Recompute recompute_of(const StageRecompute& recompute,
                       const ModelSpec& model,
                       LayerRange layers,
                       std::uint32_t layer) {
  EXPECTS(layers.holds(layer));
  if (layer_kind(model, layer) != LayerKind::block) return Recompute::none;
  return recompute.of(layer - std::max(layers.first, 1u));
}

}  // namespace troupe
