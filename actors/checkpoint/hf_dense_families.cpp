#include <algorithm>

#include "actors/checkpoint/hf_config.h"
#include "actors/checkpoint/hf_families.h"

namespace troupe::hf {
namespace {

/// A size that has had two names.
std::uint32_t count_of(HfKeys& keys, const char* name, const char* other) {
  return keys.count(!keys.has(name) && keys.has(other) ? other : name);
}

/// Heads of queries, keys and values that share the width out.
void divide_into_heads(Architecture& model, std::uint32_t heads) {
  model.attention.heads = heads;
  model.attention.kv_heads = heads;
  model.attention.head_width = quotient(model.width, heads);
}

void all_biases(Architecture& model, bool value) {
  model.attention.qkv_bias = value;
  model.attention.out_bias = value;
  model.mlp_bias = value;
}

}  // namespace

std::uint32_t quotient(std::uint32_t a, std::uint32_t b) {
  return b == 0 ? 0 : a / b;
}

std::uint32_t product(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(std::uint64_t{a} * b, 0xffffffffu));
}

Architecture with_llama_keys(HfKeys& keys, const char* family, const Defaults& usual) {
  Architecture model;
  model.family = family;
  model.blocks = keys.count("num_hidden_layers");
  model.width = keys.count("hidden_size");
  AttentionShape& attention = model.attention;
  attention.heads = keys.count("num_attention_heads");
  attention.kv_heads =
      keys.count("num_key_value_heads", usual.kv_heads > 0 ? usual.kv_heads : attention.heads);
  attention.head_width = keys.count(
      "head_dim", usual.head_width > 0 ? usual.head_width : quotient(model.width, attention.heads));
  model.ffn_width = keys.count("intermediate_size");
  model.vocabulary = keys.count("vocab_size");
  model.context = keys.count("max_position_embeddings", usual.context);
  model.tied = keys.flag("tie_word_embeddings", usual.tied);
  model.rotary_share = keys.number("partial_rotary_factor", usual.rotary_share);
  return model;
}

void read_attention_bias(HfKeys& keys, Architecture& model, bool otherwise) {
  model.attention.qkv_bias = keys.flag("attention_bias", otherwise);
  model.attention.out_bias = model.attention.qkv_bias;
}

Architecture gpt2(HfKeys& keys) {
  const ModelSpec sizes = gpt2_sizes(keys);
  return sizes.heads == 0 ? Architecture{} : architecture_of(sizes);
}

Architecture llama(HfKeys& keys) {
  Architecture model = with_llama_keys(keys, "llama", {});
  read_attention_bias(keys, model, false);
  model.mlp_bias = keys.flag("mlp_bias", false);
  return model;
}

Architecture granite(HfKeys& keys) {
  Architecture model = llama(keys);
  model.family = "granite";
  return model;
}

Architecture mistral(HfKeys& keys) {
  return with_llama_keys(keys, "mistral", {.kv_heads = 8, .context = 131072});
}

Architecture qwen2(HfKeys& keys) {
  Architecture model = with_llama_keys(keys, "qwen2", {.context = 32768});
  model.attention.qkv_bias = true;
  return model;
}

Architecture qwen3(HfKeys& keys) {
  Architecture model = with_llama_keys(keys, "qwen3", {.head_width = 128, .context = 32768});
  read_attention_bias(keys, model, false);
  model.attention.qk_norm = QkNorm::per_head;
  return model;
}

Architecture gemma(HfKeys& keys) {
  Architecture model = with_llama_keys(
      keys, "gemma", {.kv_heads = 16, .head_width = 256, .context = 8192, .tied = true});
  read_attention_bias(keys, model, false);
  return model;
}

Architecture gemma2(HfKeys& keys) {
  Architecture model = with_llama_keys(
      keys, "gemma2", {.kv_heads = 4, .head_width = 256, .context = 8192, .tied = true});
  read_attention_bias(keys, model, false);
  model.norms_per_block = 4;
  return model;
}

Architecture gemma3(HfKeys& keys) {
  Architecture model = with_llama_keys(
      keys, "gemma3", {.kv_heads = 4, .head_width = 256, .context = 131072, .tied = true});
  read_attention_bias(keys, model, false);
  model.norms_per_block = 4;
  model.attention.qk_norm = QkNorm::per_head;
  return model;
}

Architecture olmo2(HfKeys& keys) {
  Architecture model = with_llama_keys(keys, "olmo2", {});
  read_attention_bias(keys, model, false);
  model.attention.qk_norm = QkNorm::full;
  return model;
}

Architecture olmo(HfKeys& keys) {
  keys.refuse("model_type",
              "is \"olmo\", whose norms have no parameters; Troupe does not describe "
              "such norms, \"olmo2\" has them with a gain");
  return {};
}

Architecture phi(HfKeys& keys) {
  Architecture model = with_llama_keys(keys, "phi", {.rotary_share = 0.5});
  keys.require("qk_layernorm", false);
  all_biases(model, true);
  model.ffn_matrices = 2;
  model.head_bias = true;
  model.norm = NormKind::layer_norm;
  model.norms_per_block = 1;  // one norm feeds attention and FFN
  return model;
}

Architecture phi3(HfKeys& keys) {
  return with_llama_keys(keys, "phi3", {.context = 4096});
}

Architecture stablelm(HfKeys& keys) {
  Architecture model = with_llama_keys(keys, "stablelm", {.context = 4096, .rotary_share = 0.25});
  keys.require("qk_layernorm", false);
  model.attention.qkv_bias = keys.flag("use_qkv_bias", false);
  model.norm = NormKind::layer_norm;
  model.norms_per_block = keys.flag("use_parallel_residual", false) ? 1 : 2;
  return model;
}

Architecture nemotron(HfKeys& keys) {
  Architecture model = with_llama_keys(keys, "nemotron", {.context = 4096, .rotary_share = 0.5});
  read_attention_bias(keys, model, false);
  model.mlp_bias = keys.flag("mlp_bias", false);
  model.ffn_matrices = 2;
  model.norm = NormKind::layer_norm;
  return model;
}

Architecture gpt_neox(HfKeys& keys) {
  Architecture model = with_llama_keys(keys, "gpt-neox", {});
  read_attention_bias(keys, model, true);
  model.mlp_bias = true;
  model.ffn_matrices = 2;
  model.norm = NormKind::layer_norm;
  model.rotary_share = keys.number("rotary_pct", 0.25);
  return model;
}

Architecture opt(HfKeys& keys) {
  Architecture model;
  model.family = "opt";
  model.blocks = keys.count("num_hidden_layers");
  model.width = keys.count("hidden_size");
  divide_into_heads(model, keys.count("num_attention_heads"));
  model.ffn_width = keys.count("ffn_dim");
  model.ffn_matrices = 2;
  all_biases(model, keys.flag("enable_bias", true));
  model.vocabulary = keys.count("vocab_size");
  model.context = keys.count("max_position_embeddings", 2048);
  model.tied = keys.flag("tie_word_embeddings", true);
  model.position = PositionKind::learned;
  model.position_rows = model.context > 0xfffffff0u ? 0 : model.context + 2;
  model.norm = NormKind::layer_norm;
  model.final_norm =
      keys.flag("do_layer_norm_before", true) && !keys.flag("_remove_final_layer_norm", false);
  keys.require("word_embed_proj_dim", model.width);
  keys.require("layer_norm_elementwise_affine", true);
  return model;
}

Architecture bloom(HfKeys& keys) {
  Architecture model;
  model.family = "bloom";
  model.blocks = count_of(keys, "n_layer", "num_hidden_layers");
  model.width = count_of(keys, "hidden_size", "n_embed");
  divide_into_heads(model, count_of(keys, "n_head", "num_attention_heads"));
  model.ffn_width = product(4, model.width);
  model.ffn_matrices = 2;
  all_biases(model, true);
  model.vocabulary = keys.count("vocab_size");
  model.context = keys.count("seq_length", 2048);
  model.tied = keys.flag("tie_word_embeddings", true);
  model.position = PositionKind::alibi;
  model.norm = NormKind::layer_norm;
  model.extra_parameters = std::uint64_t{2} * model.width;  // the norm of the embedding
  return model;
}

Architecture falcon(HfKeys& keys) {
  Architecture model;
  model.family = "falcon";
  model.blocks = count_of(keys, "num_hidden_layers", "n_layer");
  model.width = keys.count("hidden_size");
  AttentionShape& attention = model.attention;
  divide_into_heads(model, count_of(keys, "num_attention_heads", "n_head"));
  const bool grouped = keys.flag("new_decoder_architecture", false);
  const bool parallel = keys.flag("parallel_attn", true);
  if (grouped)
    attention.kv_heads =
        keys.count(keys.has("n_head_kv") ? "n_head_kv" : "num_kv_heads", attention.heads);
  else if (keys.flag("multi_query", true))
    attention.kv_heads = 1;
  model.norms_per_block = grouped ? keys.count("num_ln_in_parallel_attn", 2) : (parallel ? 1u : 2u);
  model.ffn_width = keys.count("ffn_hidden_size", product(4, model.width));
  model.ffn_matrices = 2;
  all_biases(model, keys.flag("bias", false));
  model.vocabulary = keys.count("vocab_size");
  model.context = keys.count("max_position_embeddings", 2048);
  model.tied = keys.flag("tie_word_embeddings", true);
  model.position = keys.flag("alibi", false) ? PositionKind::alibi : PositionKind::rotary;
  model.norm = NormKind::layer_norm;
  return model;
}

Architecture gpt_j(HfKeys& keys) {
  Architecture model;
  model.family = "gpt-j";
  model.blocks = keys.count("n_layer");
  model.width = keys.count("n_embd");
  divide_into_heads(model, keys.count("n_head"));
  model.ffn_width = keys.count("n_inner", product(4, model.width));
  model.ffn_matrices = 2;
  model.mlp_bias = true;
  model.vocabulary = keys.count("vocab_size");
  model.context = keys.count("n_positions", 2048);
  model.tied = keys.flag("tie_word_embeddings", false);
  model.head_bias = true;
  model.norm = NormKind::layer_norm;
  model.norms_per_block = 1;  // one norm feeds attention and FFN
  if (model.attention.head_width > 0)
    model.rotary_share =
        keys.count("rotary_dim", 64) / static_cast<double>(model.attention.head_width);
  return model;
}

}  // namespace troupe::hf
