#include "planner/architecture.h"

#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/model_rows.h"

using namespace troupe;
using published::architecture_from;
using published::Row;

namespace {

const std::filesystem::path data_folder = TROUPE_SOURCE_DIR "/tests/data";

/// "12.9B" is 12.9e9 with a last digit worth 0.1e9; zeros at the end of a whole number ("800M")
/// carry no digits.
struct PrintedCount {
  double value = 0, unit = 0;
};

PrintedCount printed_count(const std::string& text) {
  const double scale = text.back() == 'B' ? 1e9 : 1e6;
  const std::string digits = text.substr(0, text.size() - 1);
  const auto point = digits.find('.');
  double unit = 1;
  if (point != std::string::npos)
    unit = std::pow(10.0, -static_cast<double>(digits.size() - point - 1));
  else
    unit = std::pow(10.0, static_cast<double>(digits.size() - 1 - digits.find_last_not_of('0')));
  return {std::stod(digits) * scale, unit * scale};
}

Architecture tiny_experts() {
  Architecture model;
  model.blocks = 4;
  model.width = 8;
  model.attention.heads = 2;
  model.attention.kv_heads = 1;
  model.attention.head_width = 4;
  model.ffn_width = 16;
  model.moe = {.experts = 4, .top_k = 2, .ffn_width = 6};
  model.moe.first_dense_blocks = 1;
  model.vocabulary = 10;
  model.context = 32;
  return model;
}

}  // namespace

TEST_CASE("every published model has its exact number of parameters") {
  const published::Table table(data_folder, "models");
  CHECK(table.size() == 48);
  for (const Row& row : table.rows()) {
    CAPTURE(row.text("model"));
    const Architecture model = architecture_from(row);
    const Status holds = validate(model);
    CHECK(holds.ok());
    if (!holds) UNSCOPED_INFO(holds.error().text);
    CHECK(parameter_count(model) == std::stoull(row.text("params_total_exact")));
  }
}

/// Publications count the parameters of a token with or without the tables that it only looks up,
/// and GLM without the head as well; some cut the last digit instead of rounding it.
TEST_CASE("active parameters agree with the published ones within the last printed digit") {
  std::size_t compared = 0;
  const published::Table table(data_folder, "models");
  for (const Row& row : table.rows()) {
    const std::string& text = row.text("params_active_published");
    if (text.empty()) continue;
    CAPTURE(row.text("model"), text);
    const Architecture model = architecture_from(row);
    const PrintedCount printed = printed_count(text);
    const auto all = static_cast<double>(active_parameter_count(model));
    const auto multiplied = static_cast<double>(active_multiplied_parameters(model));
    const double head = model.tied ? 0 : static_cast<double>(head_parameters(model).head);
    double nearest = std::abs(all - printed.value);
    nearest = std::min(nearest, std::abs(multiplied - printed.value));
    if (model.family == "glm4-moe")
      nearest = std::min(nearest, std::abs(multiplied - head - printed.value));
    CAPTURE(all, multiplied, head);
    CHECK(nearest < printed.unit);
    ++compared;
  }
  CHECK(compared == 15);
}

TEST_CASE("the layers of a model with experts add up by hand") {
  const Architecture model = tiny_experts();
  const LayerParameters dense = block_parameters(model, 0);
  CHECK(dense.attention == 2 * 8 * 8 + 2 * 8 * 4);
  CHECK(dense.dense_ffn == 3 * 8 * 16);
  CHECK(dense.norms == 2 * 8);
  CHECK(dense.experts == 0);
  const LayerParameters sparse = block_parameters(model, 1);
  CHECK(sparse.dense_ffn == 0);
  CHECK(sparse.expert == 3 * 8 * 6);
  CHECK(sparse.experts == 4 * 3 * 8 * 6);
  CHECK(sparse.router == 8 * 4);
  CHECK(sparse.total() - sparse.active() == 2 * 3 * 8 * 6);
  CHECK(layer_parameters(model, 0).total() == 10 * 8);
  CHECK(layer_parameters(model, 5).total() == 8 + 10 * 8);
  CHECK(parameter_count(model) == 80 + dense.total() + 3 * sparse.total() + 88);
  CHECK(active_multiplied_parameters(model) == active_parameter_count(model) - 80);
}

TEST_CASE("experts in every second block stand in the last of each two") {
  Architecture model = tiny_experts();
  model.moe.first_dense_blocks = 0;
  model.moe.moe_every = 2;
  CHECK_FALSE(has_experts(model, 0));
  CHECK(has_experts(model, 1));
  CHECK_FALSE(has_experts(model, 2));
  CHECK(has_experts(model, 3));
}

TEST_CASE("what can be trained has the same parameters as an architecture") {
  ModelSpec gpt2{.blocks = 3, .width = 48, .heads = 4, .kv_heads = 4, .ffn_width = 100};
  gpt2.vocabulary = 77;
  gpt2.context = 20;
  ModelSpec llama = gpt2;
  llama.family = ModelFamily::llama;
  llama.kv_heads = 2;
  for (ModelSpec model : {gpt2, llama})
    for (const bool tied : {true, false}) {
      model.tied = tied;
      const Architecture shape = architecture_of(model);
      CHECK(validate(shape).ok());
      CHECK(parameter_count(shape) == parameter_count(model));
      CHECK(active_parameter_count(shape) == parameter_count(model));
      // Layer by layer as well.
      std::vector<std::uint64_t> layers(layer_count(model));
      for (const ParameterSpec& parameter : parameters_of(model))
        layers[parameter.layer] += parameter.elements();
      for (std::uint32_t layer = 0; layer < layer_count(model); ++layer)
        CHECK(layer_parameters(shape, layer).total() == layers[layer]);
    }
}

TEST_CASE("impossible architectures are refused with the nearest possible value") {
  const auto refusal = [](const auto& change) {
    Architecture model = tiny_experts();
    change(model);
    const Status holds = validate(model);
    return holds ? std::string("holds") : holds.error().text;
  };
  using A = Architecture;
  CHECK(refusal([](A&) {}) == "holds");
  CHECK(refusal([](A& m) { m.moe.top_k = 5; }) ==
        "model.top_k = 5 is out of range; the nearest legal value is 4");
  CHECK(refusal([](A& m) { m.attention.heads = 8, m.attention.kv_heads = 3; }) ==
        "model.kv_heads = 3 does not divide heads = 8; the nearest that does is 2");
  CHECK(refusal([](A& m) { m.moe.first_dense_blocks = 4; }) ==
        "model.first_dense_blocks = 4 is out of range; the nearest legal value is 3");
  CHECK(refusal([](A& m) { m.moe.experts = 0; }).find("model.experts = 0") == 0);
  CHECK(refusal([](A& m) { m.attention.latent.nope_width = 4; }).find("model.kv_rank = 0") == 0);
  CHECK(refusal([](A& m) {
          m.attention.latent = {0, 4, 2, 1, 4};
        }) == "model.head_width = 4 is not nope_width + rope_width; the nearest legal value is 3");
  CHECK(refusal([](A& m) { m.ffn_width = 0; }).find("model.ffn_width = 0") == 0);
  CHECK(refusal([](A& m) { m.moe.shared_gate = true; }).find("model.shared_gate") == 0);
  CHECK(refusal([](A& m) { m.rotary_share = 0; }).find("model.rotary_share = 0") == 0);
}
