/// What a block keeps between F and B, and what its backward computes again. Bits never depend on
/// it: what is computed again goes through the same ops on the same numbers.
///
///   none       everything that backward reads is kept
///   selective  outputs of norms and of the activation, which move few bytes and multiply nothing,
///              are computed again; outputs of products and attention's sums are kept
///   full       the block keeps its output alone and runs its forward again, but for the last
///              product
///
/// Attention's scores are computed again under every policy (kernels/attention.h). The kinds are
/// those of Korthikanti et al. 2022 (arXiv:2205.05198, section 5).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "planner/model.h"
#include "planner/result.h"

namespace troupe {

enum class Recompute : std::uint8_t { none, selective, full };
std::string_view to_string(Recompute policy);
/// Error invalid_input: names the three.
Result<Recompute> parse_recompute(std::string_view text);

/// The policies of a stage's blocks, in layer order: the first `full`, then `selective`, the rest
/// keep everything.
struct StageRecompute {
  std::uint32_t full = 0, selective = 0;
  bool none() const { return full == 0 && selective == 0; }
  /// Of the stage's block `i`, counted from 0.
  Recompute of(std::uint32_t i) const;
  friend bool operator==(const StageRecompute&, const StageRecompute&) = default;
};
/// "3 full, 2 selective", "2 selective", "none".
std::string to_text(const StageRecompute& recompute);

/// Blocks among the layers.
std::uint32_t block_count(const ModelSpec& model, LayerRange layers);
/// One policy for all blocks of a stage.
StageRecompute recompute_all(const ModelSpec& model, LayerRange layers, Recompute policy);
/// Of a model's layer in a stage of `layers`; embedding and head: none. Promise: the stage holds
/// it.
Recompute recompute_of(const StageRecompute& recompute,
                       const ModelSpec& model,
                       LayerRange layers,
                       std::uint32_t layer);

}  // namespace troupe
