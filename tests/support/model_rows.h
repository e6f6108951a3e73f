/// Rows of tests/data/models.csv as architectures.
#pragma once

#include <cstdint>
#include <string>

#include "planner/architecture.h"
#include "tests/support/published_table.h"

namespace troupe::published {

inline std::uint32_t whole(const Row& row, const char* column) {
  return static_cast<std::uint32_t>(row.integer(column));
}

inline PositionKind position_of(const std::string& text) {
  if (text == "learned") return PositionKind::learned;
  return text == "alibi" ? PositionKind::alibi : PositionKind::rotary;
}

/// "rope-25%" rotates a quarter of each head.
inline double rotary_share_of(const std::string& text) {
  return text.starts_with("rope-") ? std::stod(text.substr(5)) / 100 : 1.0;
}

inline NormKind norm_of(const std::string& text) {
  if (text == "layernorm") return NormKind::layer_norm;
  return text == "rmsnorm" ? NormKind::rms_norm : NormKind::layer_norm_no_bias;
}

inline QkNorm qk_norm_of(const std::string& text) {
  if (text == "none") return QkNorm::none;
  return text == "head" ? QkNorm::per_head : QkNorm::full;
}

inline AttentionShape attention_of(const Row& row) {
  AttentionShape attention;
  attention.heads = whole(row, "heads");
  attention.kv_heads = whole(row, "kv_heads");
  attention.head_width = whole(row, "head_dim");
  attention.latent = {whole(row, "q_lora"), whole(row, "kv_lora"), whole(row, "qk_nope"),
                      whole(row, "qk_rope"), whole(row, "v_head")};
  attention.qk_norm = qk_norm_of(row.text("qk_norm"));
  attention.qkv_bias = whole(row, "qkv_bias") == 1;
  attention.out_bias = whole(row, "out_bias") == 1;
  attention.sinks = row.text("attention") == "gqa+sinks";
  return attention;
}

inline ExpertShape experts_of(const Row& row) {
  ExpertShape moe;
  moe.experts = whole(row, "experts");
  moe.top_k = whole(row, "top_k");
  moe.ffn_width = whole(row, "moe_ffn");
  moe.shared_experts = whole(row, "shared_experts");
  moe.shared_ffn_width = whole(row, "shared_ffn");
  moe.shared_gate = whole(row, "shared_gate") == 1;
  moe.first_dense_blocks = whole(row, "first_dense_layers");
  moe.moe_every = whole(row, "moe_every");
  moe.router_bias = whole(row, "router_bias") == 1;
  // A dense residual beside the experts counts as one shared expert.
  if (moe.shared_ffn_width > 0 && moe.shared_experts == 0) moe.shared_experts = 1;
  return moe;
}

inline Architecture architecture_from(const Row& row) {
  Architecture model;
  model.family = row.text("family");
  model.blocks = whole(row, "layers");
  model.width = whole(row, "hidden");
  model.attention = attention_of(row);
  model.ffn_width = whole(row, "ffn");
  model.ffn_matrices = whole(row, "ffn_matrices");
  model.mlp_bias = whole(row, "mlp_bias") == 1;
  model.moe = experts_of(row);
  model.vocabulary = whole(row, "vocab_rows");
  model.context = row.text("context").empty() ? 1 : whole(row, "context");
  model.tied = whole(row, "tied_embeddings") == 1;
  model.head_bias = whole(row, "head_bias") == 1;
  model.position = position_of(row.text("position"));
  model.rotary_share = rotary_share_of(row.text("position"));
  model.position_rows = whole(row, "learned_pos_rows");
  model.norm = norm_of(row.text("norm"));
  model.norms_per_block = whole(row, "norms_per_layer");
  model.final_norm = whole(row, "final_norm") == 1;
  model.extra_parameters = whole(row, "extra_params");
  return model;
}

}  // namespace troupe::published
