#include "actors/checkpoint/hf_config.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "actors/checkpoint/hf_keys.h"

namespace troupe {
namespace {

using nlohmann::json;

ModelSpec read_gpt2(HfKeys& keys) {
  const ModelSpec model = gpt2_sizes(keys);
  keys.require("activation_function", "gelu_new");
  keys.require("scale_attn_weights", true);
  keys.require("scale_attn_by_inverse_layer_idx", false);
  keys.require("add_cross_attention", false);
  return model;
}

ModelSpec read_llama(HfKeys& keys) {
  ModelSpec model;
  model.family = ModelFamily::llama;
  model.blocks = keys.count("num_hidden_layers");
  model.width = keys.count("hidden_size");
  model.heads = keys.count("num_attention_heads");
  model.kv_heads = keys.count("num_key_value_heads", model.heads);
  model.ffn_width = keys.count("intermediate_size");
  model.vocabulary = keys.count("vocab_size");
  model.context = keys.count("max_position_embeddings", 2048);
  model.norm_epsilon = keys.number("rms_norm_eps", 1e-6);
  model.rope_theta = keys.number("rope_theta", 10000.0);
  model.tied = keys.flag("tie_word_embeddings", false);
  model.dropout = 0;
  keys.require("hidden_act", "silu");
  keys.require("attention_bias", false);
  keys.require("mlp_bias", false);
  keys.require_absent("rope_scaling");
  if (model.heads > 0) keys.require("head_dim", model.width / model.heads);
  if (const json* const rope = keys.find("rope_parameters")) {  // newer files put theta here
    if (rope->is_object() && rope->contains("rope_theta") && rope->at("rope_theta").is_number())
      model.rope_theta = rope->at("rope_theta").get<double>();
    else
      keys.refuse("rope_parameters", "must be an object with a number \"rope_theta\"");
    if (rope->is_object() && rope->value("rope_type", json("default")) != "default")
      keys.refuse("rope_parameters", "has a rope_type other than \"default\"");
  }
  return model;
}

}  // namespace

ModelSpec gpt2_sizes(HfKeys& keys) {
  ModelSpec model;
  model.family = ModelFamily::gpt2;
  model.blocks = keys.count("n_layer");
  model.width = keys.count("n_embd");
  model.heads = keys.count("n_head");
  model.kv_heads = model.heads;
  const std::uint64_t usual = std::uint64_t{4} * model.width;
  if (usual > std::numeric_limits<std::uint32_t>::max()) keys.refuse("n_embd", "is too large");
  model.ffn_width = keys.count("n_inner", static_cast<std::uint32_t>(usual));
  model.vocabulary = keys.count("vocab_size");
  model.context =
      keys.find("n_positions") != nullptr ? keys.count("n_positions") : keys.count("n_ctx");
  model.norm_epsilon = keys.number("layer_norm_epsilon", 1e-5);
  model.dropout = keys.number("resid_pdrop", 0.1);
  model.tied = keys.flag("tie_word_embeddings", true);
  return model;
}

std::string hf_config_text(const ModelSpec& model) {
  nlohmann::ordered_json config;
  if (model.family == ModelFamily::gpt2) {
    const bool has_end = model.vocabulary == 50257;
    config["architectures"] = {"GPT2LMHeadModel"};
    config["model_type"] = "gpt2";
    config["activation_function"] = "gelu_new";
    config["attn_pdrop"] = 0.0;
    config["bos_token_id"] = has_end ? nlohmann::ordered_json(50256) : nlohmann::ordered_json();
    config["embd_pdrop"] = model.dropout;
    config["eos_token_id"] = config["bos_token_id"];
    config["layer_norm_epsilon"] = model.norm_epsilon;
    config["n_ctx"] = model.context;
    config["n_embd"] = model.width;
    config["n_head"] = model.heads;
    config["n_inner"] = model.ffn_width;
    config["n_layer"] = model.blocks;
    config["n_positions"] = model.context;
    config["resid_pdrop"] = model.dropout;
  } else {
    config["architectures"] = {"LlamaForCausalLM"};
    config["model_type"] = "llama";
    config["attention_bias"] = false;
    config["hidden_act"] = "silu";
    config["hidden_size"] = model.width;
    config["intermediate_size"] = model.ffn_width;
    config["max_position_embeddings"] = model.context;
    config["mlp_bias"] = false;
    config["num_attention_heads"] = model.heads;
    config["num_hidden_layers"] = model.blocks;
    config["num_key_value_heads"] = model.kv_heads;
    config["rms_norm_eps"] = model.norm_epsilon;
    config["rope_theta"] = model.rope_theta;
  }
  config["tie_word_embeddings"] = model.tied;
  config["torch_dtype"] = "float32";
  config["vocab_size"] = model.vocabulary;
  return config.dump(2) + "\n";
}

Result<ModelSpec> model_from_hf_config(std::string_view text, std::string_view file) {
  auto parsed = parse_json(text, file);
  TROUPE_TRY(parsed);
  if (!parsed->is_object())
    return Error{ErrorCode::invalid_input, fmt::format("{}: must be an object", file)};
  HfKeys keys(*parsed, file);
  const json* const type = keys.find("model_type");
  ModelSpec model;
  if (type != nullptr && *type == "gpt2")
    model = read_gpt2(keys);
  else if (type != nullptr && *type == "llama")
    model = read_llama(keys);
  else
    keys.refuse("model_type", "must be \"gpt2\" or \"llama\"");
  if (keys.problem()) return *keys.problem();
  if (const Status legal = validate(model); !legal.ok())
    return Error{ErrorCode::invalid_input, fmt::format("{}: {}", file, legal.error().text)};
  return model;
}

}  // namespace troupe
