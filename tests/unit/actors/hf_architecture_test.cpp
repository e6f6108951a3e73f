#include "actors/checkpoint/hf_architecture.h"

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"

using namespace troupe;
using nlohmann::json;

namespace {

/// A small file with Llama's keys, and `more` in it.
json file_of(const char* type, const json& more = json::object()) {
  json file{{"model_type", type},           {"hidden_size", 8},        {"num_hidden_layers", 4},
            {"num_attention_heads", 2},     {"intermediate_size", 16}, {"vocab_size", 10},
            {"max_position_embeddings", 32}};
  file.update(more);
  return file;
}

Architecture model_of(const json& file) {
  const auto model = architecture_from_hf_config(file.dump(), "c.json");
  INFO((model ? std::string() : model.error().text));
  REQUIRE(model.ok());
  return *model;
}

std::string refusal_of(const json& file) {
  const auto model = architecture_from_hf_config(file.dump(), "c.json");
  return model ? std::string("holds") : model.error().text;
}

json experts(const json& more) {
  json keys{{"num_experts", 4},
            {"num_experts_per_tok", 2},
            {"moe_intermediate_size", 6},
            {"num_key_value_heads", 2}};
  keys.update(more);
  return file_of("qwen3_moe", keys);
}

json routed(const json& more) {
  json keys{{"n_routed_experts", 4}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 6}};
  keys.update(more);
  return file_of("deepseek", keys);
}

/// The blocks that have experts, as text: "0011".
std::string places(const Architecture& model) {
  std::string out;
  for (std::uint32_t block = 0; block < model.blocks; ++block)
    out += has_experts(model, block) ? '1' : '0';
  return out;
}

}  // namespace

TEST_CASE("an unknown model_type is answered with the near ones and the list") {
  const std::string known = "; known: bloom, dbrx, deepseek, ";
  CHECK(refusal_of(file_of("lama"))
            .find("c.json: \"model_type\" is \"lama\", which is not known; "
                  "nearest legal value: \"llama\"" +
                  known) == 0);
  CHECK(refusal_of(file_of("qwen"))
            .find("nearest legal values: \"qwen2\", \"qwen2_moe\", \"qwen3\", "
                  "\"qwen3_moe\"" +
                  known) != std::string::npos);
  CHECK(refusal_of(json::object()).find("c.json: \"model_type\" is missing" + known) == 0);
  CHECK(refusal_of({{"model_type", 7}}).find("c.json: \"model_type\" must be text" + known) == 0);
  CHECK(refusal_of(json::array()) == "c.json: must be an object");
  CHECK(hf_model_types().size() == 32);
}

TEST_CASE("sizes have to be there, whole and possible") {
  json file = file_of("llama");
  file.erase("hidden_size");
  CHECK(refusal_of(file) == "c.json: \"hidden_size\" is missing");
  CHECK(refusal_of(file_of("llama", {{"hidden_size", 8.5}})) ==
        "c.json: \"hidden_size\" must be a whole number below 2^32, is 8.5");
  for (const char* key : {"num_attention_heads", "hidden_size", "num_hidden_layers", "vocab_size"})
    CHECK(refusal_of(file_of("llama", {{key, 0}})) ==
          "c.json: \"" + std::string(key) + "\" is 0; at least 1 is needed");
  // Nobody reads these in a Llama file; no file has them below 0.
  for (const char* key : {"moe_intermediate_size", "v_head_dim", "num_local_experts"})
    CHECK(refusal_of(file_of("llama", {{key, -3}})) ==
          "c.json: \"" + std::string(key) + "\" is -3; a size is at least 0");
  CHECK(refusal_of(file_of("llama", {{"pad_token_id", -1}})) == "holds");
  CHECK(refusal_of(file_of("llama", {{"num_key_value_heads", 3}})).find("c.json: model.kv_heads") ==
        0);
  CHECK(refusal_of(file_of("llama", {{"tie_word_embeddings", 1}})) ==
        "c.json: \"tie_word_embeddings\" must be true or false, is 1");
  CHECK(refusal_of(file_of("phi", {{"partial_rotary_factor", 1.5}}))
            .find("model.rotary_share = 1.5") != std::string::npos);
}

TEST_CASE("absent keys have the family's defaults") {
  const Architecture llama = model_of(file_of("llama", {{"head_dim", nullptr}}));
  CHECK(llama.attention.kv_heads == 2);
  CHECK(llama.attention.head_width == 4);
  CHECK_FALSE(llama.tied);
  const Architecture biased =
      model_of(file_of("llama", {{"attention_bias", true}, {"mlp_bias", true}}));
  CHECK(biased.attention.qkv_bias);
  CHECK(biased.attention.out_bias);
  CHECK(biased.mlp_bias);
  const Architecture qwen2 = model_of(file_of("qwen2"));
  CHECK(qwen2.attention.qkv_bias);
  CHECK_FALSE(qwen2.attention.out_bias);
  const Architecture phi = model_of(file_of("phi"));
  CHECK(phi.rotary_share == 0.5);
  CHECK(phi.norms_per_block == 1);
  CHECK(phi.head_bias);
  CHECK(model_of(file_of("gemma", {{"num_key_value_heads", 1}})).attention.head_width == 256);
  CHECK(model_of(file_of("gemma", {{"num_key_value_heads", 1}})).tied);
}

TEST_CASE("experts stand where the file's rule puts them") {
  CHECK(places(model_of(experts(json::object()))) == "1111");
  CHECK(model_of(experts(json::object())).ffn_width == 0);
  CHECK(places(model_of(experts({{"decoder_sparse_step", 2}}))) == "0101");
  CHECK(places(model_of(experts({{"mlp_only_layers", {0, 1}}}))) == "0011");
  CHECK(places(model_of(experts({{"mlp_only_layers", {0, 1, 2}}}))) == "0001");
  CHECK(places(model_of(experts({{"mlp_only_layers", {0, 1, 2, 3}}}))) == "0000");
  CHECK(places(model_of(experts({{"mlp_only_layers", {0, 1, 3}}}))) == "0010");
  CHECK(places(model_of(routed({{"first_k_dense_replace", 1}}))) == "0111");
  CHECK(places(model_of(routed({{"first_k_dense_replace", 1}, {"moe_layer_freq", 2}}))) == "0010");
  CHECK(model_of(routed({{"n_routed_experts", nullptr}})).has_experts() == false);
  CHECK(refusal_of(experts({{"mlp_only_layers", {1}}}))
            .find("c.json: \"mlp_only_layers\" puts experts into blocks that follow no rule") == 0);
  CHECK(refusal_of(routed({{"moe_layer_freq", 2}}))
            .find("c.json: \"moe_layer_freq\" puts experts into blocks that follow no rule") == 0);
  CHECK(refusal_of(experts({{"decoder_sparse_step", 0}})).find("\"decoder_sparse_step\" is 0") !=
        std::string::npos);
  CHECK(refusal_of(experts({{"mlp_only_layers", 3}})).find("must be a list") != std::string::npos);
}

TEST_CASE("experts that cannot be are refused by their key") {
  CHECK(refusal_of(experts({{"num_experts", 0}})) ==
        "c.json: \"num_experts\" is 0; at least 1 is needed");
  CHECK(refusal_of(file_of("mixtral", {{"num_local_experts", 0}})) ==
        "c.json: \"num_local_experts\" is 0; at least 1 is needed");
  CHECK(refusal_of(routed({{"n_routed_experts", 0}})) ==
        "c.json: \"n_routed_experts\" is 0; at least 1 is needed");
  CHECK(refusal_of(experts({{"num_experts_per_tok", 5}})) ==
        "c.json: \"num_experts_per_tok\" is 5, and there are 4 experts; from 1 to 4");
  CHECK(refusal_of(routed({{"first_k_dense_replace", 5}})) ==
        "c.json: \"first_k_dense_replace\" is 5, and there are 4 blocks; at most 4");
  for (const json& block : {json(4), json(-1), json(true), json(0.5)})
    CHECK(refusal_of(experts({{"mlp_only_layers", {block}}})) ==
          "c.json: \"mlp_only_layers\" holds " + block.dump() + "; the blocks are 0 to 3");
}

TEST_CASE("activations are known ones") {
  for (const char* key : {"hidden_act", "hidden_activation", "activation_function"}) {
    CHECK(refusal_of(file_of("llama", {{key, "silu"}})) == "holds");
    CHECK(refusal_of(file_of("llama", {{key, "sillu"}}))
              .find("c.json: \"" + std::string(key) +
                    "\" is \"sillu\", which is not known; nearest legal value") == 0);
    CHECK(refusal_of(file_of("llama", {{key, 7}})) ==
          "c.json: \"" + std::string(key) + "\" must be text, is 7");
  }
}

TEST_CASE("what an architecture cannot say is refused by its key") {
  CHECK(refusal_of(file_of("olmo")).find("c.json: \"model_type\" is \"olmo\", whose norms") == 0);
  json opt = file_of("opt", {{"ffn_dim", 16}, {"word_embed_proj_dim", 4}});
  CHECK(refusal_of(opt).find("c.json: \"word_embed_proj_dim\" is 4") == 0);
  CHECK(refusal_of(file_of("phi", {{"qk_layernorm", true}})).find("c.json: \"qk_layernorm\"") == 0);
  json latent = file_of(
      "deepseek_v2",
      {{"kv_lora_rank", 4}, {"qk_nope_head_dim", 2}, {"qk_rope_head_dim", 2}, {"v_head_dim", 2}});
  CHECK(model_of(latent).attention.head_width == 4);
  latent["attention_bias"] = true;
  CHECK(refusal_of(latent).find("c.json: \"attention_bias\" is true") == 0);
  CHECK(refusal_of({{"model_type", "dbrx"},
                    {"n_layers", 1},
                    {"d_model", 4},
                    {"n_heads", 1},
                    {"vocab_size", 9},
                    {"max_seq_len", 8},
                    {"attn_config", 3}}) == "c.json: \"attn_config\" must be an object");
}

TEST_CASE("falcon's three shapes of block") {
  const json base{{"model_type", "falcon"},
                  {"hidden_size", 8},
                  {"num_hidden_layers", 2},
                  {"num_attention_heads", 4},
                  {"vocab_size", 10}};
  const auto with = [&](const json& more) {
    json file = base;
    file.update(more);
    return model_of(file);
  };
  const Architecture first = with(json::object());  // one key head, attention and FFN side by side
  CHECK(first.attention.kv_heads == 1);
  CHECK(first.norms_per_block == 1);
  CHECK(first.ffn_width == 32);
  const Architecture second = with({{"new_decoder_architecture", true}, {"num_kv_heads", 2}});
  CHECK(second.attention.kv_heads == 2);
  CHECK(second.norms_per_block == 2);
  const Architecture third =
      with({{"multi_query", false}, {"parallel_attn", false}, {"alibi", true}, {"bias", true}});
  CHECK(third.attention.kv_heads == 4);
  CHECK(third.norms_per_block == 2);
  CHECK(third.position == PositionKind::alibi);
  CHECK(third.attention.out_bias);
}
