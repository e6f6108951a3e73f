#include "planner/model.h"

#include <cmath>
#include <set>

#include "tests/support/catch.h"

using namespace troupe;

namespace {

ModelSpec gpt2_small() {
  ModelSpec model;
  model.family = ModelFamily::gpt2;
  model.blocks = 12;
  model.width = 768;
  model.heads = model.kv_heads = 12;
  model.ffn_width = 3072;
  model.vocabulary = 50257;
  model.context = 1024;
  return model;
}

ModelSpec llama2_7b() {
  ModelSpec model;
  model.family = ModelFamily::llama;
  model.blocks = 32;
  model.width = 4096;
  model.heads = model.kv_heads = 32;
  model.ffn_width = 11008;
  model.vocabulary = 32000;
  model.context = 4096;
  model.tied = false;
  return model;
}

const ParameterSpec& named(const std::vector<ParameterSpec>& list, const std::string& name) {
  for (const ParameterSpec& parameter : list)
    if (parameter.name == name) return parameter;
  FAIL("no parameter " << name);
  return list.front();
}

}  // namespace

TEST_CASE("parameter counts are the published ones") {
  CHECK(parameter_count(gpt2_small()) == 124'439'808);
  CHECK(parameter_count(llama2_7b()) == 6'738'415'616);
  ModelSpec untied = gpt2_small();
  untied.tied = false;
  CHECK(parameter_count(untied) == 124'439'808 + 50257ull * 768);
}

TEST_CASE("GPT-2 parameters have the names and shapes of its files") {
  const auto list = parameters_of(gpt2_small());
  CHECK(list.size() == 2 + 12 * 12 + 2);
  CHECK(list[0].name == "transformer.wte.weight");
  CHECK(list[0].shape == std::vector<std::uint64_t>{50257, 768});
  CHECK(list[1].name == "transformer.wpe.weight");
  const auto& attention = named(list, "transformer.h.3.attn.c_attn.weight");
  CHECK(attention.shape == std::vector<std::uint64_t>{768, 2304});
  CHECK(attention.layer == 4);
  CHECK(attention.decays);
  CHECK(attention.init_std == 0.02);
  CHECK(named(list, "transformer.h.11.mlp.c_proj.weight").init_std ==
        Approx(0.02 / std::sqrt(24.0)));
  CHECK(named(list, "transformer.h.0.ln_1.weight").init == Init::ones);
  CHECK_FALSE(named(list, "transformer.h.0.ln_1.bias").decays);
  CHECK(named(list, "transformer.ln_f.bias").layer == 13);
}

TEST_CASE("Llama parameters have the names and shapes of its files, grouped heads too") {
  ModelSpec model = llama2_7b();
  model.kv_heads = 8;
  const auto list = parameters_of(model);
  CHECK(list.front().name == "model.embed_tokens.weight");
  CHECK(list.back().name == "lm_head.weight");
  CHECK(named(list, "model.layers.31.self_attn.k_proj.weight").shape ==
        std::vector<std::uint64_t>{1024, 4096});
  CHECK(named(list, "model.layers.0.mlp.down_proj.weight").shape ==
        std::vector<std::uint64_t>{4096, 11008});
  std::set<std::string> names;
  for (const auto& parameter : list) names.insert(parameter.name);
  CHECK(names.size() == list.size());
}

TEST_CASE("layers are embedding, blocks, head") {
  const ModelSpec model = gpt2_small();
  CHECK(layer_count(model) == 14);
  CHECK(layer_kind(model, 0) == LayerKind::embedding);
  CHECK(layer_kind(model, 1) == LayerKind::block);
  CHECK(layer_kind(model, 12) == LayerKind::block);
  CHECK(layer_kind(model, 13) == LayerKind::head);
}

TEST_CASE("a model that cannot be is refused with the nearest one that can") {
  const auto refused = [](auto change) {
    ModelSpec model = llama2_7b();
    change(model);
    const Status status = validate(model);
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::invalid_input);
    return status.error().text;
  };
  CHECK(validate(llama2_7b()).ok());
  CHECK(validate(gpt2_small()).ok());
  CHECK(refused([](ModelSpec& m) { m.heads = 30; }) ==
        "model.heads = 30 does not divide width = 4096; the nearest that does is 32");
  CHECK(refused([](ModelSpec& m) { m.kv_heads = 5; }) ==
        "model.kv_heads = 5 does not divide heads = 32; the nearest that does is 4");
  CHECK(refused([](ModelSpec& m) { m.blocks = 0; }) ==
        "model.blocks = 0 is out of range; the nearest legal value is 1");
  CHECK(refused([](ModelSpec& m) {
          m.width = 99;
          m.heads = m.kv_heads = 33;
        }) ==
        "model.width / heads = 3 is odd, but rotary positions turn pairs; the nearest legal width "
        "is 132");
  CHECK(refused([](ModelSpec& m) { m.dropout = 1.0; }).find("dropout") != std::string::npos);
  CHECK(refused([](ModelSpec& m) { m.norm_epsilon = std::nan(""); }).find("norm_epsilon") !=
        std::string::npos);
  CHECK(refused([](ModelSpec& m) {
          m.family = ModelFamily::gpt2;
          m.kv_heads = 4;
        }).find("it must be 32") != std::string::npos);
}
