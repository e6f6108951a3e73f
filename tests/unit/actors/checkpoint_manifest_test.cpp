#include "actors/checkpoint/manifest.h"

#include <functional>
#include <nlohmann/json.hpp>

#include "actors/checkpoint/hf_config.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_checkpoint.h"

using namespace troupe;

namespace {

Manifest example() {
  Manifest manifest;
  manifest.run = tiny_run(tiny_llama(), 20);
  manifest.run.model.norm_epsilon = 1e-6;
  manifest.files.push_back(
      {{"model-00001-of-00001.safetensors", 12345, std::string(32, 'a')}, {"x", "y"}});
  manifest.files.push_back({{"config.json", 7, std::string(32, 'b')}, {}});
  return manifest;
}

/// The error after a change, with the checksum made right again.
std::string error_after(const std::function<void(nlohmann::json&)>& change) {
  auto json = nlohmann::json::parse(manifest_text(example()));
  change(json);
  json.erase("checksum");
  const std::string body = json.dump(1);
  json["checksum"] = to_hex(XXH3_128bits(body.data(), body.size()));
  const auto parsed = parse_manifest(json.dump(1) + "\n", "m.json");
  REQUIRE_FALSE(parsed.ok());
  CHECK(parsed.error().code == ErrorCode::corrupt);
  return parsed.error().text;
}

}  // namespace

TEST_CASE("a manifest survives writing and reading") {
  const auto parsed = parse_manifest(manifest_text(example()), "m.json");
  if (!parsed.ok()) FAIL(parsed.error().text);
  CHECK(*parsed == example());
}

TEST_CASE("every changed byte and every truncation of a manifest is noticed") {
  const std::string good = manifest_text(example());
  for (std::size_t i = 0; i < good.size(); ++i) {
    INFO("byte " << i);
    CHECK_FALSE(parse_manifest(good.substr(0, i), "m").ok());
    for (const char other : {' ', '\t', '0', '"', '\xff', static_cast<char>(good[i] ^ 1)}) {
      if (other == good[i]) continue;
      std::string changed = good;
      changed[i] = other;
      CHECK_FALSE(parse_manifest(changed, "m").ok());
    }
  }
  CHECK_FALSE(parse_manifest(good + "\n", "m").ok());
}

TEST_CASE("L088 a manifest without data position, or with any other part missing, is refused") {
  for (const char* key : {"data_position", "data_fingerprint", "step", "seed", "adam_step",
                          "skipped_steps", "has_moments", "model", "files", "version", "format"})
    CHECK(error_after([&](auto& json) { json.erase(key); }).find(key) != std::string::npos);
}

TEST_CASE("manifests that say what cannot be are refused by place") {
  CHECK(error_after([](auto& j) { j["version"] = 1; }) ==
        "m.json: version 1; this program reads version 2");
  CHECK(error_after([](auto& j) { j["stepp"] = 2; }) ==
        "m.json: manifest.stepp is not a known key");
  CHECK(error_after([](auto& j) { j["adam_step"] = 20; }).find("do not add up to step 20") !=
        std::string::npos);
  CHECK(error_after([](auto& j) { j["step"] = -1; }).find("step is not a whole number") !=
        std::string::npos);
  CHECK(error_after([](auto& j) { j["model"]["heads"] = 3; }).find("m.json: model.heads = 3") == 0);
  CHECK(error_after([](auto& j) {
          j["model"]["width"] = "8";
        }).find("model.width is not a whole") != std::string::npos);
  for (const char* name : {"../x", "a/b", "..", ".", "", "a\nb", "/etc/passwd"})
    CHECK(error_after([&](auto& j) {
            j["files"][0]["name"] = name;
          }).find("is not a plain file name") != std::string::npos);
  CHECK(error_after([](auto& j) {
          j["files"][1]["name"] = j["files"][0]["name"];
        }).find("is listed twice") != std::string::npos);
  CHECK(error_after([](auto& j) {
          j["files"][0]["tensors"] = {1};
        }).find("files[0].tensors[0] is not a string") != std::string::npos);
  CHECK(error_after([](auto& j) { j["files"] = 1; }).find("manifest.files is not an array") !=
        std::string::npos);
  CHECK_FALSE(parse_manifest("[]", "m").ok());
  CHECK_FALSE(parse_manifest(std::string(100000, '['), "m").ok());
}

TEST_CASE("config.json survives writing and reading") {
  for (const bool tied : {true, false})
    for (ModelSpec model : {tiny_gpt2(tied), tiny_llama(tied)}) {
      model.dropout = model.family == ModelFamily::gpt2 ? 0.25 : 0;
      const auto read = model_from_hf_config(hf_config_text(model), "config.json");
      if (!read.ok()) FAIL(read.error().text);
      CHECK(*read == model);
    }
}

TEST_CASE("config.json: defaults, and settings that are not computed here, by key") {
  const std::string gpt2 =
      R"("model_type":"gpt2","n_layer":2,"n_embd":8,"n_head":2,"vocab_size":10,"n_positions":4)";
  const auto model = model_from_hf_config(std::string("{") + gpt2 + "}", "c");
  REQUIRE(model.ok());
  CHECK(model->ffn_width == 32);
  CHECK(model->tied);
  const std::string llama =
      R"("model_type":"llama","num_hidden_layers":1,"hidden_size":8,"num_attention_heads":2,)"
      R"("intermediate_size":9,"vocab_size":10)";
  const auto other =
      model_from_hf_config(std::string("{") + llama +
                               R"(,"rope_parameters":{"rope_theta":5000.0,"rope_type":"default"}})",
                           "c");
  REQUIRE(other.ok());
  CHECK_FALSE(other->tied);
  CHECK(other->kv_heads == 2);
  CHECK(other->norm_epsilon == 1e-6);
  CHECK(other->rope_theta == 5000);
  const auto error = [](const std::string& text) {
    const auto read = model_from_hf_config(text, "c.json");
    REQUIRE_FALSE(read.ok());
    return read.error().text;
  };
  CHECK(error("{}") == "c.json: \"model_type\" must be \"gpt2\" or \"llama\"");
  CHECK(error(R"({"model_type":"bert"})").find("\"model_type\"") != std::string::npos);
  CHECK(error(R"({"model_type":"gpt2"})") == "c.json: \"n_layer\" is missing");
  CHECK(error(std::string("{") + gpt2 + R"(,"activation_function":"relu"})") ==
        "c.json: \"activation_function\" is \\x22relu\\x22; Troupe computes \"gelu_new\" only");
  CHECK(error(std::string("{") + gpt2 + R"(,"n_inner":"4"})")
            .find("\"n_inner\" must be a whole number") != std::string::npos);
  CHECK(error(std::string("{") + llama + R"(,"attention_bias":true})")
            .find("\"attention_bias\" is true") != std::string::npos);
  CHECK(error(std::string("{") + llama + R"(,"rope_scaling":{"factor":2.0}})")
            .find("\"rope_scaling\"") != std::string::npos);
  CHECK(error(std::string("{") + llama + R"(,"head_dim":5})")
            .find("\"head_dim\" is 5; Troupe computes 4 only") != std::string::npos);
  CHECK(error(std::string("{") + llama + R"(,"num_key_value_heads":3})").find("kv_heads = 3") !=
        std::string::npos);
  CHECK(error(std::string("{") + gpt2 + R"(,"n_layer":2})").find("key \"n_layer\" is repeated") !=
        std::string::npos);
}
