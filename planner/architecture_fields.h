/// The fields of an Architecture under the names that model files, refusals and reports use, in the
/// order in which a file lists them.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "planner/architecture.h"

namespace troupe {

/// Names of a kind's values, in the order of its enumeration.
inline std::span<const char* const> names_of(NormKind /*kind*/) {
  static constexpr std::array names{"layer_norm", "layer_norm_no_bias", "rms_norm"};
  return names;
}
inline std::span<const char* const> names_of(PositionKind /*kind*/) {
  static constexpr std::array names{"learned", "rotary", "alibi"};
  return names;
}
inline std::span<const char* const> names_of(QkNorm /*kind*/) {
  static constexpr std::array names{"none", "per_head", "full"};
  return names;
}

template <class Kind>
const char* name_of(Kind kind) {
  return names_of(kind)[static_cast<std::size_t>(kind)];
}

/// Calls visit(name, field) for every field. `Shape` is Architecture, const or not. The fields are
/// texts, bools, whole numbers of 32 and 64 bits, doubles and the three kinds above.
template <class Shape, class Visit>
void for_each_field(Shape& model, Visit&& visit) {
  visit("family", model.family);
  visit("blocks", model.blocks);
  visit("width", model.width);
  auto& attention = model.attention;
  visit("heads", attention.heads);
  visit("kv_heads", attention.kv_heads);
  visit("head_width", attention.head_width);
  visit("q_rank", attention.latent.q_rank);
  visit("kv_rank", attention.latent.kv_rank);
  visit("nope_width", attention.latent.nope_width);
  visit("rope_width", attention.latent.rope_width);
  visit("value_width", attention.latent.value_width);
  visit("qk_norm", attention.qk_norm);
  visit("qkv_bias", attention.qkv_bias);
  visit("out_bias", attention.out_bias);
  visit("sinks", attention.sinks);
  visit("ffn_width", model.ffn_width);
  visit("ffn_matrices", model.ffn_matrices);
  visit("mlp_bias", model.mlp_bias);
  visit("experts", model.moe.experts);
  visit("top_k", model.moe.top_k);
  visit("expert_ffn_width", model.moe.ffn_width);
  visit("shared_experts", model.moe.shared_experts);
  visit("shared_ffn_width", model.moe.shared_ffn_width);
  visit("shared_gate", model.moe.shared_gate);
  visit("first_dense_blocks", model.moe.first_dense_blocks);
  visit("moe_every", model.moe.moe_every);
  visit("router_bias", model.moe.router_bias);
  visit("vocabulary", model.vocabulary);
  visit("context", model.context);
  visit("tied", model.tied);
  visit("head_bias", model.head_bias);
  visit("position", model.position);
  visit("rotary_share", model.rotary_share);
  visit("position_rows", model.position_rows);
  visit("norm", model.norm);
  visit("norms_per_block", model.norms_per_block);
  visit("final_norm", model.final_norm);
  visit("extra_parameters", model.extra_parameters);
}

}  // namespace troupe
