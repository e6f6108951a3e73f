#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "actors/checkpoint/hf_families.h"

namespace troupe::hf {
namespace {

using nlohmann::json;

/// A file with more blocks is refused by `validate`; nothing is made per block before.
constexpr std::uint32_t most_blocks = 10'000;

/// Describes which blocks have experts. `key` is blamed where no rule of ExpertShape does.
template <class HasExperts>
void place_experts(HfKeys& keys, const char* key, Architecture& model, const HasExperts& has) {
  std::vector<std::uint32_t> blocks;
  for (std::uint32_t block = 0; block < std::min(model.blocks, most_blocks); ++block)
    if (has(block)) blocks.push_back(block);
  if (blocks.empty()) {
    model.moe = {};
    return;
  }
  const std::uint32_t first = blocks.front();
  const std::uint32_t every = blocks.size() > 1 ? blocks[1] - first : model.blocks - first;
  bool regular = first + 1 >= every && blocks.back() + every >= model.blocks;
  for (std::size_t i = 1; i < blocks.size(); ++i)
    regular = regular && blocks[i] - blocks[i - 1] == every;
  if (!regular)
    return keys.refuse(key,
                       "puts experts into blocks that follow no rule; Troupe describes dense "
                       "blocks first and then experts in the last of every so many blocks");
  model.moe.first_dense_blocks = first + 1 - every;
  model.moe.moe_every = every;
  if (blocks.size() == model.blocks) model.ffn_width = 0;
}

/// Experts that a token goes to: from one to all of them.
void read_top_k(HfKeys& keys, ExpertShape& moe, std::optional<std::uint32_t> otherwise) {
  constexpr const char* key = "num_experts_per_tok";
  moe.top_k = keys.count(key, otherwise);
  if (moe.top_k == 0 || moe.top_k > moe.experts)
    keys.refuse(key, fmt::format("is {}, and there are {} experts; from 1 to {}", moe.top_k,
                                 moe.experts, moe.experts));
}

/// Experts in every block; intermediate_size is theirs.
void experts_everywhere(HfKeys& keys, Architecture& model, const char* count, std::uint32_t top_k) {
  model.moe.experts = keys.count(count);
  read_top_k(keys, model.moe, top_k);
  model.moe.ffn_width = std::exchange(model.ffn_width, 0);
}

/// Experts in every decoder_sparse_step-th block but those of mlp_only_layers.
void qwen_experts(HfKeys& keys, Architecture& model, std::uint32_t top_k) {
  model.moe.experts = keys.count("num_experts");
  read_top_k(keys, model.moe, top_k);
  model.moe.ffn_width = keys.count("moe_intermediate_size");
  model.moe.shared_ffn_width = keys.count("shared_expert_intermediate_size", 0);
  model.moe.shared_experts = model.moe.shared_ffn_width > 0 ? 1 : 0;
  model.moe.shared_gate = model.moe.shared_experts > 0;
  const std::uint32_t step = keys.count("decoder_sparse_step", 1);
  const json* const dense = keys.find("mlp_only_layers");
  if (dense != nullptr && !dense->is_array())
    return keys.refuse("mlp_only_layers", "must be a list of blocks");
  for (const json& block : dense == nullptr ? json::array() : *dense)
    if (!block.is_number_unsigned() || block.get<std::uint64_t>() >= model.blocks)
      return keys.refuse("mlp_only_layers",
                         fmt::format("holds {}; the blocks are 0 to {}", printable(block.dump()),
                                     std::max(model.blocks, 1U) - 1));
  if (step == 0) return keys.refuse("decoder_sparse_step", "is 0; 1 puts experts everywhere");
  place_experts(
      keys, dense == nullptr || dense->empty() ? "decoder_sparse_step" : "mlp_only_layers", model,
      [&](std::uint32_t block) {
        return model.moe.experts > 0 && (block + 1) % step == 0 &&
               (dense == nullptr || std::find(dense->begin(), dense->end(), block) == dense->end());
      });
}

/// Experts after first_k_dense_replace blocks, in those whose number moe_layer_freq divides.
void deepseek_experts(HfKeys& keys, Architecture& model) {
  ExpertShape& moe = model.moe;
  if (!keys.has("n_routed_experts")) return;  // a dense model
  moe.experts = keys.count("n_routed_experts");
  read_top_k(keys, moe, std::nullopt);
  moe.ffn_width = keys.count("moe_intermediate_size");
  moe.shared_experts = keys.count("n_shared_experts", 0);
  moe.shared_ffn_width = product(moe.shared_experts, moe.ffn_width);
  const std::uint32_t first = keys.count("first_k_dense_replace", 0);
  if (first > model.blocks)
    return keys.refuse("first_k_dense_replace",
                       fmt::format("is {}, and there are {} blocks; at most {}", first,
                                   model.blocks, model.blocks));
  const std::uint32_t every = keys.count("moe_layer_freq", 1);
  if (every == 0) return keys.refuse("moe_layer_freq", "is 0; 1 puts experts everywhere");
  place_experts(keys, "moe_layer_freq", model,
                [=](std::uint32_t block) { return block >= first && block % every == 0; });
}

}  // namespace

Architecture mixtral(HfKeys& keys) {
  Architecture model = with_llama_keys(keys, "mixtral", {.kv_heads = 8, .context = 131072});
  experts_everywhere(keys, model, "num_local_experts", 2);
  return model;
}

Architecture granite_moe(HfKeys& keys) {
  Architecture model = with_llama_keys(keys, "granitemoe", {});
  read_attention_bias(keys, model, false);
  experts_everywhere(keys, model, "num_local_experts", 2);
  return model;
}

Architecture phi_moe(HfKeys& keys) {
  Architecture model = with_llama_keys(keys, "phimoe", {.kv_heads = 8, .context = 131072});
  read_attention_bias(keys, model, false);
  experts_everywhere(keys, model, "num_local_experts", 2);
  model.head_bias = keys.flag("lm_head_bias", false);
  model.norm = NormKind::layer_norm;
  return model;
}

Architecture olmoe(HfKeys& keys) {
  Architecture model = with_llama_keys(keys, "olmoe", {.kv_heads = 16, .context = 4096});
  read_attention_bias(keys, model, false);
  experts_everywhere(keys, model, "num_experts", 8);
  model.attention.qk_norm = QkNorm::full;
  return model;
}

Architecture gpt_oss(HfKeys& keys) {
  Architecture model =
      with_llama_keys(keys, "gpt-oss", {.kv_heads = 8, .head_width = 64, .context = 131072});
  read_attention_bias(keys, model, true);
  experts_everywhere(keys, model, "num_local_experts", 4);
  model.attention.sinks = true;
  model.mlp_bias = true;
  model.moe.router_bias = true;
  return model;
}

Architecture qwen2_moe(HfKeys& keys) {
  Architecture model = with_llama_keys(keys, "qwen2-moe", {.context = 32768});
  model.attention.qkv_bias = keys.flag("qkv_bias", true);
  qwen_experts(keys, model, 4);
  return model;
}

Architecture qwen3_moe(HfKeys& keys) {
  Architecture model = with_llama_keys(keys, "qwen3-moe", {.kv_heads = 4, .context = 32768});
  read_attention_bias(keys, model, false);
  model.attention.qk_norm = QkNorm::per_head;
  qwen_experts(keys, model, 8);
  return model;
}

Architecture deepseek(HfKeys& keys) {
  Architecture model = with_llama_keys(keys, "deepseek", {});
  read_attention_bias(keys, model, false);
  deepseek_experts(keys, model);
  return model;
}

Architecture deepseek_v2(HfKeys& keys) {
  Architecture model = with_llama_keys(keys, "deepseek", {});
  keys.require("attention_bias", false);
  LatentAttention& latent = model.attention.latent;
  latent.q_rank = keys.count("q_lora_rank", 0);
  latent.kv_rank = keys.count("kv_lora_rank");
  latent.nope_width = keys.count("qk_nope_head_dim");
  latent.rope_width = keys.count("qk_rope_head_dim");
  latent.value_width = keys.count("v_head_dim");
  // head_dim, where a file has it, is the rotated part alone.
  model.attention.head_width = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(std::uint64_t{latent.nope_width} + latent.rope_width, 0xffffffffu));
  model.attention.kv_heads = model.attention.heads;
  deepseek_experts(keys, model);
  return model;
}

/// The third version's router has a bias per expert that balances their load.
Architecture deepseek_v3(HfKeys& keys) {
  Architecture model = deepseek_v2(keys);
  model.moe.router_bias = model.has_experts();
  return model;
}

Architecture glm4_moe(HfKeys& keys) {
  Architecture model =
      with_llama_keys(keys, "glm4-moe", {.kv_heads = 8, .context = 131072, .rotary_share = 0.5});
  model.attention.qkv_bias = keys.flag("attention_bias", false);
  if (keys.flag("use_qk_norm", false)) model.attention.qk_norm = QkNorm::per_head;
  deepseek_experts(keys, model);
  model.moe.router_bias = model.has_experts();
  return model;
}

Architecture dbrx(HfKeys& keys) {
  Architecture model;
  model.family = "dbrx";
  model.blocks = keys.count("n_layers");
  model.width = keys.count("d_model");
  model.attention.heads = keys.count("n_heads");
  model.attention.head_width = quotient(model.width, model.attention.heads);
  model.vocabulary = keys.count("vocab_size");
  model.context = keys.count("max_seq_len");
  model.tied = keys.flag("tie_word_embeddings", false);
  model.norm = NormKind::layer_norm_no_bias;
  for (const char* part : {"attn_config", "ffn_config"})
    if (!keys.has(part) || !keys.find(part)->is_object()) {
      keys.refuse(part, "must be an object");
      return model;
    }
  HfKeys attention = keys.inside("attn_config");
  model.attention.kv_heads = attention.count("kv_n_heads", 1);
  HfKeys ffn = keys.inside("ffn_config");
  model.moe.experts = ffn.count("moe_num_experts", 4);
  model.moe.top_k = ffn.count("moe_top_k", 1);
  model.moe.ffn_width = ffn.count("ffn_hidden_size");
  keys.adopt_problem(attention);
  keys.adopt_problem(ffn);
  return model;
}

}  // namespace troupe::hf
