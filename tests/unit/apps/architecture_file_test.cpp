#include "apps/architecture_file.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "actors/checkpoint/hf_architecture.h"
#include "apps/run_config.h"
#include "planner/architecture_fields.h"
#include "tests/support/catch.h"
#include "tests/support/model_rows.h"
#include "tests/support/temporary_folder.h"

using namespace troupe;
using published::architecture_from;
using published::Row;

namespace {

namespace fs = std::filesystem;

const fs::path root = TROUPE_SOURCE_DIR;

published::Table model_rows() {
  return {root / "tests/data", "models"};
}

fs::path model_file(const Row& row) {
  return root / "conf/models" / (row.text("model") + ".toml");
}

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// What conf/models/ has for a row.
std::string file_text(const Row& row) {
  return fmt::format("# {}: {} parameters.\n# Source: {}\n{}", row.text("model"),
                     row.text("params_total_exact"), row.text("source"),
                     architecture_text(architecture_from(row)));
}

std::string problems_of(const std::string& text) {
  std::vector<ConfigProblem> problems;
  const auto model = parse_architecture(text, "m.toml", problems);
  CHECK(model.has_value() == problems.empty());
  return to_text(problems);
}

const std::string small =
    "[model]\nfamily = \"llama\"\nblocks = 2\nwidth = 64\nheads = 4\nvocabulary = 100\n"
    "context = 32\n";

/// A run over the smallest good configuration with another [model] table.
ConfigOutcome run_with(const std::string& model, bool any_model = false) {
  const std::string file = "tests/golden/config/good/smallest.toml";
  std::string text = read(root / file);
  const auto begin = text.find("[model]");
  text.replace(begin, text.find("\n[", begin) - begin, model);
  ConfigOptions options;
  options.any_model = any_model;
  return parse_config(text, file, options);
}

}  // namespace

// build/release/tests/test_unit_apps "[write-models]" makes the files from the table.
TEST_CASE("conf/models is written from the published table", "[.][write-models]") {
  const auto table = model_rows();
  for (const Row& row : table.rows()) std::ofstream(model_file(row)) << file_text(row);
}

TEST_CASE("conf/models has every published model with its exact number of parameters") {
  const auto table = model_rows();
  CHECK(table.size() == 48);
  for (const Row& row : table.rows()) {
    CAPTURE(row.text("model"));
    const auto model = load_architecture(model_file(row).string());
    if (!model) UNSCOPED_INFO(model.error().text);
    REQUIRE(model.ok());
    CHECK(parameter_count(*model) == std::stoull(row.text("params_total_exact")));
    CHECK(*model == architecture_from(row));
    CHECK(read(model_file(row)) == file_text(row));
  }
}

/// The corpus of the fuzz target has config.json of many rows. Those files know shares of rotation
/// that the table does not.
TEST_CASE("config.json of Hugging Face gives the published models") {
  const auto table = model_rows();
  std::size_t compared = 0;
  for (const Row& row : table.rows()) {
    const fs::path path = root / "tests/fuzz/corpus/hf_architecture" / row.text("model");
    if (!fs::exists(path)) continue;
    CAPTURE(row.text("model"));
    const auto model = architecture_from_hf_config(read(path), "config.json");
    if (!model) UNSCOPED_INFO(model.error().text);
    REQUIRE(model.ok());
    CHECK(parameter_count(*model) == std::stoull(row.text("params_total_exact")));
    Architecture expected = architecture_from(row);
    if (row.text("position") == "rope") expected.rotary_share = model->rotary_share;
    CHECK(*model == expected);
    if (!(*model == expected))
      UNSCOPED_INFO(architecture_text(*model) << architecture_text(expected));
    ++compared;
  }
  CHECK(compared == 33);
}

TEST_CASE("every field of a model has a key with its name") {
  const Architecture model;
  for_each_field(model, [](const char* name, const auto&) {
    CAPTURE(name);
    CHECK(find_key("model", name) != nullptr);
  });
}

TEST_CASE("a model file says what is wrong, where, and what was meant") {
  CHECK(problems_of(small).empty());
  CHECK(problems_of(small + "experst = 8\n") ==
        "m.toml:8:1: unknown key \"experst\" in [model]; did you mean \"experts\"?\n");
  CHECK(problems_of(small + "num_local_experts = 8\n") ==
        "m.toml:8:1: unknown key \"num_local_experts\" in [model]; did you mean \"experts\" in "
        "[model]?\n");
  CHECK(problems_of(small + "experts = 8\ntop_k = 9\nexpert_ffn_width = 16\n") ==
        "m.toml:9:9: model.top_k = 9 is out of range; the nearest legal value is 8\n");
  CHECK(problems_of(small + "norm = \"rmsnorm\"\n") ==
        "m.toml:8:8: model.norm = \"rmsnorm\" is not one of \"layer_norm\", "
        "\"layer_norm_no_bias\", \"rms_norm\"; nearest legal value: \"rms_norm\"\n");
  CHECK(problems_of("[model]\nblocks = 2\nwidth = 64\nheads = 4\nvocabulary = 9\n") ==
        "m.toml:1:1: model.context is missing; add for example context = 2048\n");
  CHECK(problems_of("[model]\nblocks = 2\nheads = 4\nvocabulary = 9\ncontext = 8\n") ==
        "m.toml:1:1: model.width is missing; add for example width = 128\n");
  CHECK(problems_of("") == "m.toml:1:1: there is no table [model]; a model file holds one\n");
  CHECK(problems_of(small + "[run]\nsteps = 3\n") ==
        "m.toml:8:2: \"run\" in a model file; it holds only [model]\n");
  CHECK(problems_of(small + "file = \"x\"\n") ==
        "m.toml:8:1: model.file in a model file; it cannot start from another\n");
  CHECK(problems_of(small + "blocks = \n").find("m.toml:8:") == 0);
}

TEST_CASE("what a family takes for granted need not be written") {
  std::vector<ConfigProblem> problems;
  const auto llama = parse_architecture(small, "m.toml", problems);
  REQUIRE(llama);
  CHECK(llama->norm == NormKind::rms_norm);
  CHECK(llama->attention.head_width == 16);
  CHECK(llama->ffn_width == 192);  // 8/3 x 64 = 170.7, up to a multiple of 32
  const auto gpt2 = parse_architecture(
      "[model]\nblocks = 2\nwidth = 64\nheads = 4\nvocabulary = 100\ncontext = 32\n", "m",
      problems);
  REQUIRE(gpt2);
  CHECK(gpt2->norm == NormKind::layer_norm);
  CHECK(gpt2->attention.qkv_bias);
  CHECK(gpt2->position_rows == 32);
  CHECK(gpt2->ffn_width == 4 * 64);
  const auto experts =
      parse_architecture(small + "experts = 4\ntop_k = 1\nexpert_ffn_width = 8\n", "m", problems);
  REQUIRE(experts);
  CHECK(experts->ffn_width == 0);  // no block is dense
}

TEST_CASE("a folder with config.json and the file itself are models") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "config.json";
  fs::copy_file(root / "tests/fuzz/corpus/hf_architecture/qwen3-8b", path);
  const auto of_folder = load_architecture(folder.path().string());
  REQUIRE(of_folder.ok());
  CHECK(parameter_count(*of_folder) == 8190735360);
  CHECK(*load_architecture(path.string()) == *of_folder);
  std::ofstream(path) << "{\"model_type\": \"lama\"}";
  const auto refused = load_architecture(path.string());
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().text.find("\"model_type\" is \"lama\", which is not known; nearest legal "
                                  "value: \"llama\"; known: bloom, dbrx, ") != std::string::npos);
  CHECK_FALSE(load_architecture((folder.path() / "nowhere.toml").string()).ok());
}

TEST_CASE("a run takes its model from a file, and its own keys win") {
  const auto outcome =
      run_with("[model]\nfile = \"../../../../conf/models/gpt2.toml\"\nblocks = 3\n");
  INFO(to_text(outcome.problems));
  REQUIRE(outcome.loaded.has_value());
  CHECK(outcome.loaded->model.blocks == 3);
  CHECK(outcome.loaded->model.width == 768);
  CHECK(outcome.loaded->spec.model.width == 768);
  CHECK(architecture_of(outcome.loaded->spec.model) == outcome.loaded->model);
}

TEST_CASE("a model that is not trained is named by its features, or planned where that is asked") {
  const std::string model = "[model]\nfile = \"../../../../conf/models/mixtral-8x7b.toml\"\n";
  const auto refused = run_with(model);
  CHECK(to_text(refused.problems) ==
        "tests/golden/config/good/smallest.toml:6:8: this model can be planned but not trained: "
        "family = \"mixtral\" (trained: \"llama\"), experts = 8 (trained: 0)\n");
  const auto planned = run_with(model, true);
  REQUIRE(planned.loaded.has_value());
  CHECK(parameter_count(planned.loaded->model) == 46702792704);
  CHECK(planned.loaded->spec.model.blocks == 32);
  CHECK(planned.loaded->untrained ==
        "this model can be planned but not trained: family = \"mixtral\" (trained: \"llama\"), "
        "experts = 8 (trained: 0)");
}

TEST_CASE("a wrong model file is one problem that names the file that was meant") {
  const auto outcome = run_with("[model]\nfile = \"../../../../conf/models/llama-2-7.toml\"\n");
  CHECK(to_text(outcome.problems) ==
        "tests/golden/config/good/smallest.toml:6:8: model.file: conf/models/llama-2-7.toml: there "
        "is no such file; there is \"../../../../conf/models/llama-2-70b.toml\", "
        "\"../../../../conf/models/llama-2-7b.toml\"\n");
}

TEST_CASE("settings of config.json that are not computed stop training alone") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "config.json";
  const std::string model = "[model]\nfile = \"" + folder.path().string() + "\"\n";
  fs::copy_file(root / "tests/fuzz/corpus/hf_architecture/llama-3.1-70b", path);
  const std::string text = to_text(run_with(model).problems);
  CHECK(text.find("smallest.toml:6:8: this model can be planned but not trained: ") !=
        std::string::npos);
  CHECK(text.find("config.json: \"rope_scaling\" is {") != std::string::npos);
  const auto planned = run_with(model, true);
  REQUIRE(planned.loaded.has_value());
  CHECK(planned.loaded->untrained.find("rope_scaling") != std::string::npos);
  fs::remove(path);
  fs::copy_file(root / "tests/fuzz/corpus/hf_architecture/llama-2-7b", path);
  const auto trained = run_with(model);
  REQUIRE(trained.loaded.has_value());
  CHECK(run_with(model, true).loaded->untrained.empty());
  CHECK(trained.loaded->spec.model.norm_epsilon == 1e-5);
  CHECK(trained.loaded->spec.model.blocks == 32);
}
