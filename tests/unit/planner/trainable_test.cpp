#include "planner/trainable.h"

#include <string_view>

#include "tests/support/catch.h"
#include "tests/support/model_rows.h"

using namespace troupe;

namespace {

ModelSpec tiny(ModelFamily family) {
  ModelSpec model{.family = family, .blocks = 3, .width = 48, .heads = 4, .kv_heads = 4};
  model.ffn_width = 100;
  model.vocabulary = 77;
  model.context = 20;
  return model;
}

std::string refusal_of(const Architecture& model) {
  const auto trained = trainable(model);
  return trained ? std::string("trainable") : trained.error().text;
}

bool holds(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("what is trained comes back from its full description") {
  ModelSpec llama = tiny(ModelFamily::llama);
  llama.kv_heads = 2;
  for (ModelSpec model : {tiny(ModelFamily::gpt2), llama})
    for (const bool tied : {true, false}) {
      model.tied = tied;
      const auto again = trainable(architecture_of(model));
      REQUIRE(again.ok());
      CHECK(*again == model);
    }
}

TEST_CASE("every feature that stops training is named with what would be trained") {
  Architecture model = architecture_of(tiny(ModelFamily::llama));
  model.family = "qwen3-moe";
  model.attention.head_width = 16;
  model.attention.qk_norm = QkNorm::per_head;
  model.moe = {.experts = 8, .top_k = 2, .ffn_width = 24};
  model.rotary_share = 0.5;
  CHECK(refusal_of(model) ==
        "this model can be planned but not trained: family = \"qwen3-moe\" (trained: \"llama\"), "
        "head_width = 16 (trained: 12), qk_norm = \"per_head\" (trained: \"none\"), "
        "experts = 8 (trained: 0), rotary_share = 0.5 (trained: 1)");
  Architecture latent = architecture_of(tiny(ModelFamily::llama));
  latent.attention.latent = {0, 8, 8, 4, 8};
  CHECK(refusal_of(latent) ==
        "this model can be planned but not trained: kv_rank = 8 (trained: 0)");
}

TEST_CASE("each field by itself stops training") {
  const auto gpt2 = [](const auto& change) {
    Architecture model = architecture_of(tiny(ModelFamily::gpt2));
    change(model);
    return refusal_of(model);
  };
  using A = Architecture;
  CHECK(gpt2([](A&) {}) == "trainable");
  CHECK(holds(gpt2([](A& m) { m.attention.kv_heads = 2; }), ": kv_heads = 2 (trained: 4)"));
  CHECK(holds(gpt2([](A& m) { m.attention.qkv_bias = false; }), ": qkv_bias = false"));
  CHECK(holds(gpt2([](A& m) { m.attention.out_bias = false; }), ": out_bias = false"));
  CHECK(holds(gpt2([](A& m) { m.attention.sinks = true; }), ": sinks = true"));
  CHECK(holds(gpt2([](A& m) { m.ffn_matrices = 3; }), ": ffn_matrices = 3 (trained: 2)"));
  CHECK(holds(gpt2([](A& m) { m.mlp_bias = false; }), ": mlp_bias = false"));
  CHECK(holds(gpt2([](A& m) { m.head_bias = true; }), ": head_bias = true"));
  CHECK(holds(gpt2([](A& m) { m.position_rows = 22; }), ": position_rows = 22 (trained: 20)"));
  CHECK(holds(gpt2([](A& m) { m.norm = NormKind::layer_norm_no_bias; }), ": norm = \"layer_norm_"));
  CHECK(holds(gpt2([](A& m) { m.norms_per_block = 1; }), ": norms_per_block = 1 (trained: 2)"));
  CHECK(holds(gpt2([](A& m) { m.final_norm = false; }), ": final_norm = false"));
  CHECK(holds(gpt2([](A& m) { m.extra_parameters = 96; }), ": extra_parameters = 96"));
  CHECK(holds(gpt2([](A& m) { m.family = "opt"; }), ": family = \"opt\" (trained: \"gpt2\")"));
}

TEST_CASE("an impossible model is refused as such") {
  Architecture model = architecture_of(tiny(ModelFamily::gpt2));
  model.attention.kv_heads = 3;
  CHECK(refusal_of(model).find("model.kv_heads = 3 does not divide heads = 4") == 0);
  Architecture odd = architecture_of(tiny(ModelFamily::llama));
  odd.width = 20;
  odd.attention.head_width = 5;
  CHECK(refusal_of(odd).find("model.width / heads = 5 is odd") == 0);
}

TEST_CASE("what stands in for any model is valid and has its layers, width and table") {
  const published::Table rows(TROUPE_SOURCE_DIR "/tests/data", "models");
  for (const published::Row& row : rows.rows()) {
    CAPTURE(row.text("model"));
    const Architecture model = published::architecture_from(row);
    const ModelSpec spec = stand_in(model);
    CHECK(validate(spec).ok());
    CHECK(layer_count(spec) == model.blocks + 2);
    CHECK(spec.width == model.width);
    CHECK(spec.vocabulary == model.vocabulary);
    CHECK(spec.tied == model.tied);
  }
}
