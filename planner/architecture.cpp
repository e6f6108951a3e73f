#include "planner/architecture.h"

#include <fmt/format.h>

#include <utility>

#include "planner/field_checks.h"

namespace troupe {
namespace {

std::uint64_t norm_parameters(const Architecture& model) {
  return std::uint64_t{model.width} * (model.norm == NormKind::layer_norm ? 2 : 1);
}

std::uint64_t latent_parameters(const Architecture& model) {
  const AttentionShape& attention = model.attention;
  const LatentAttention& latent = attention.latent;
  const std::uint64_t width = model.width;
  const std::uint64_t heads = attention.heads;
  const std::uint64_t q_rank = latent.q_rank;
  const std::uint64_t kv_rank = latent.kv_rank;
  const std::uint64_t q_width = heads * (std::uint64_t{latent.nope_width} + latent.rope_width);
  // A rank's projection down is followed by a norm of that rank.
  const std::uint64_t q =
      q_rank == 0 ? width * q_width : width * q_rank + q_rank + q_rank * q_width;
  const std::uint64_t kv =
      width * (kv_rank + latent.rope_width) + kv_rank +
      kv_rank * heads * (std::uint64_t{latent.nope_width} + latent.value_width);
  return q + kv + heads * latent.value_width * width + (attention.out_bias ? width : 0);
}

std::uint64_t attention_parameters(const Architecture& model) {
  const AttentionShape& attention = model.attention;
  if (attention.is_latent()) return latent_parameters(model);
  const std::uint64_t width = model.width;
  const std::uint64_t head = attention.head_width;
  const std::uint64_t q_width = attention.heads * head;
  const std::uint64_t kv_width = attention.kv_heads * head;
  std::uint64_t count = 2 * width * q_width + 2 * width * kv_width;
  if (attention.qkv_bias) count += q_width + 2 * kv_width;
  if (attention.out_bias) count += width;
  if (attention.sinks) count += attention.heads;
  if (attention.qk_norm == QkNorm::per_head) count += 2 * head;
  if (attention.qk_norm == QkNorm::full) count += q_width + kv_width;
  return count;
}

std::uint64_t ffn_parameters(const Architecture& model, std::uint64_t inner, bool bias) {
  const std::uint64_t matrices = model.ffn_matrices;
  return matrices * model.width * inner + (bias ? (matrices - 1) * inner + model.width : 0);
}

Error refuse(std::string text) {
  return {ErrorCode::invalid_input, std::move(text)};
}

Status check_shape(const Architecture& model) {
  const bool dense_blocks =
      !model.has_experts() || model.moe.first_dense_blocks > 0 || model.moe.moe_every > 1;
  const FieldRange ranges[] = {
      {"blocks", model.blocks, 1, 10'000},
      {"width", model.width, 1, 1u << 20},
      {"heads", model.attention.heads, 1, 1u << 16},
      {"kv_heads", model.attention.kv_heads, 1, 1u << 16},
      {"head_width", model.attention.head_width, 1, 1u << 20},
      {"ffn_width", model.ffn_width, dense_blocks ? 1u : 0u, 1u << 24},
      {"ffn_matrices", model.ffn_matrices, 2, 3},
      {"vocabulary", model.vocabulary, 2, 1u << 24},
      {"context", model.context, 1, 1u << 24},
      {"norms_per_block", model.norms_per_block, 0, 16},
      {"position_rows", model.position_rows, model.position == PositionKind::learned ? 1u : 0u,
       model.position == PositionKind::learned ? (1u << 24) : 0u},
  };
  for (const FieldRange& range : ranges) TROUPE_TRY(check_range(range));
  if (!(model.rotary_share > 0.0 && model.rotary_share <= 1.0))
    return refuse(fmt::format("model.rotary_share = {} is not in (0, 1]; 1 rotates whole heads",
                              model.rotary_share));
  if (model.extra_parameters > (std::uint64_t{1} << 40))
    return refuse(
        fmt::format("model.extra_parameters = {} is out of range; the nearest legal "
                    "value is {}",
                    model.extra_parameters, std::uint64_t{1} << 40));
  return {};
}

Status check_attention(const AttentionShape& attention) {
  TROUPE_TRY(check_kv_heads(attention.heads, attention.kv_heads));
  const LatentAttention& latent = attention.latent;
  if (!attention.is_latent()) {
    if (latent == LatentAttention{}) return {};
    return refuse(
        "model.kv_rank = 0 but other widths of latent attention are given; the nearest "
        "legal value is 1");
  }
  const FieldRange ranges[] = {{"q_rank", latent.q_rank, 0, 1u << 20},
                               {"kv_rank", latent.kv_rank, 1, 1u << 20},
                               {"nope_width", latent.nope_width, 1, 1u << 16},
                               {"rope_width", latent.rope_width, 0, 1u << 16},
                               {"value_width", latent.value_width, 1, 1u << 16}};
  for (const FieldRange& range : ranges) TROUPE_TRY(check_range(range));
  const std::uint32_t sum = latent.nope_width + latent.rope_width;
  if (attention.head_width != sum)
    return refuse(
        fmt::format("model.head_width = {} is not nope_width + rope_width; the nearest "
                    "legal value is {}",
                    attention.head_width, sum));
  if (attention.qk_norm != QkNorm::none || attention.qkv_bias || attention.sinks)
    return refuse("latent attention has no qk_norm, qkv_bias or sinks; leave them out");
  return {};
}

Status check_experts(const Architecture& model) {
  const ExpertShape& moe = model.moe;
  if (!model.has_experts()) {
    if (moe == ExpertShape{}) return {};
    return refuse(
        "model.experts = 0 but other keys of experts are given; the nearest legal value "
        "is 1");
  }
  const FieldRange ranges[] = {
      {"experts", moe.experts, 1, 1u << 16},
      {"top_k", moe.top_k, 1, moe.experts},
      {"expert_ffn_width", moe.ffn_width, 1, 1u << 24},
      {"shared_experts", moe.shared_experts, 0, 1u << 12},
      {"shared_ffn_width", moe.shared_ffn_width, moe.shared_experts > 0 ? 1u : 0u,
       moe.shared_experts > 0 ? (1u << 24) : 0u},
      {"first_dense_blocks", moe.first_dense_blocks, 0, model.blocks - 1},
      {"moe_every", moe.moe_every, 1, model.blocks},
  };
  for (const FieldRange& range : ranges) TROUPE_TRY(check_range(range));
  if (moe.shared_gate && moe.shared_experts == 0)
    return refuse(
        "model.shared_gate = true without shared_experts; the nearest legal value is "
        "false");
  return {};
}

}  // namespace

bool has_experts(const Architecture& model, std::uint32_t block) {
  EXPECTS(block < model.blocks);
  const std::uint32_t first = model.moe.first_dense_blocks;
  return model.has_experts() && block >= first && (block - first + 1) % model.moe.moe_every == 0;
}

LayerParameters block_parameters(const Architecture& model, std::uint32_t block) {
  LayerParameters count;
  count.attention = attention_parameters(model);
  count.norms = model.norms_per_block * norm_parameters(model);
  if (!has_experts(model, block)) {
    count.dense_ffn = ffn_parameters(model, model.ffn_width, model.mlp_bias);
    return count;
  }
  const ExpertShape& moe = model.moe;
  count.expert = ffn_parameters(model, moe.ffn_width, model.mlp_bias);
  count.experts = moe.experts * count.expert;
  count.active_experts = moe.top_k * count.expert;
  count.router = std::uint64_t{model.width} * moe.experts + (moe.router_bias ? moe.experts : 0);
  count.shared =
      ffn_parameters(model, moe.shared_ffn_width, false) + (moe.shared_gate ? model.width : 0);
  return count;
}

LayerParameters embedding_parameters(const Architecture& model) {
  LayerParameters count;
  count.embedding = (std::uint64_t{model.vocabulary} + model.position_rows) * model.width +
                    model.extra_parameters;
  return count;
}

LayerParameters head_parameters(const Architecture& model) {
  LayerParameters count;
  count.norms = model.final_norm ? norm_parameters(model) : 0;
  count.head = (model.tied ? 0 : std::uint64_t{model.vocabulary} * model.width) +
               (model.head_bias ? model.vocabulary : 0);
  return count;
}

LayerParameters layer_parameters(const Architecture& model, std::uint32_t layer) {
  EXPECTS(layer < model.blocks + 2);
  if (layer == 0) return embedding_parameters(model);
  return layer <= model.blocks ? block_parameters(model, layer - 1) : head_parameters(model);
}

std::uint64_t parameter_count(const Architecture& model) {
  std::uint64_t count = 0;
  for (std::uint32_t layer = 0; layer < model.blocks + 2; ++layer)
    count += layer_parameters(model, layer).total();
  return count;
}

std::uint64_t active_parameter_count(const Architecture& model) {
  std::uint64_t count = 0;
  for (std::uint32_t layer = 0; layer < model.blocks + 2; ++layer)
    count += layer_parameters(model, layer).active();
  return count;
}

std::uint64_t active_multiplied_parameters(const Architecture& model) {
  const std::uint64_t tokens = model.tied ? 0 : model.vocabulary;
  return active_parameter_count(model) - (tokens + model.position_rows) * model.width;
}

Architecture architecture_of(const ModelSpec& model) {
  const bool gpt2 = model.family == ModelFamily::gpt2;
  Architecture shape;
  shape.family = gpt2 ? "gpt2" : "llama";
  shape.blocks = model.blocks;
  shape.width = model.width;
  shape.attention.heads = model.heads;
  shape.attention.kv_heads = model.kv_heads;
  shape.attention.head_width = model.head_width();
  shape.attention.qkv_bias = gpt2;
  shape.attention.out_bias = gpt2;
  shape.ffn_width = model.ffn_width;
  shape.ffn_matrices = gpt2 ? 2 : 3;
  shape.mlp_bias = gpt2;
  shape.vocabulary = model.vocabulary;
  shape.context = model.context;
  shape.tied = model.tied;
  shape.position = gpt2 ? PositionKind::learned : PositionKind::rotary;
  shape.position_rows = gpt2 ? model.context : 0;
  shape.norm = gpt2 ? NormKind::layer_norm : NormKind::rms_norm;
  return shape;
}

Status validate(const Architecture& model) {
  TROUPE_TRY(check_shape(model));
  TROUPE_TRY(check_attention(model.attention));
  return check_experts(model);
}

}  // namespace troupe
