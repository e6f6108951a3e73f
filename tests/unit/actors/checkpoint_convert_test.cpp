#include "actors/checkpoint/convert.h"

#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "actors/checkpoint/hf_config.h"
#include "actors/checkpoint/safetensors.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

using namespace troupe;

namespace {

const std::filesystem::path stories = TROUPE_SOURCE_DIR "/tests/data/stories260K/stories260K.bin";

struct Source {
  TensorPlan plan;
  std::vector<float> values;
};

std::vector<Source> sources_of(const ModelSpec& model, const std::string& cut = "") {
  std::vector<Source> sources;
  for (const auto& t : TinyState(model, 1).tensors) {
    std::string name = t.parameter.name;
    if (name.starts_with(cut)) name = name.substr(cut.size());
    sources.push_back({{name, t.parameter.shape}, t.weight});
  }
  return sources;
}

void write_file_of(const std::filesystem::path& path, const std::vector<Source>& sources) {
  std::vector<TensorPlan> plans;
  for (const Source& source : sources) plans.push_back(source.plan);
  auto writer = SafetensorsWriter::create(path, plans, {});
  REQUIRE(writer.ok());
  for (const Source& source : sources) REQUIRE(writer->append(source.values).ok());
  REQUIRE(writer->finish().ok());
}

/// A Hugging Face folder of the model in `folder`/hf.
std::filesystem::path write_hf(const TemporaryFolder& folder,
                               const ModelSpec& model,
                               const std::vector<Source>& sources) {
  const auto hf = folder / "hf";
  std::filesystem::remove_all(hf);
  std::filesystem::remove_all(folder / "out");
  std::filesystem::create_directory(hf);
  set_content(hf / "config.json", hf_config_text(model));
  write_file_of(hf / "model.safetensors", sources);
  return hf;
}

std::string import_error(const std::filesystem::path& source,
                         const std::filesystem::path& out,
                         const ImportOptions& options = {}) {
  const auto imported = import_model(source, out, options);
  REQUIRE_FALSE(imported.ok());
  CHECK_FALSE(std::filesystem::exists(out));
  for (const auto& entry : std::filesystem::directory_iterator(out.parent_path()))
    CHECK_FALSE(entry.path().string().ends_with(".writing"));
  return imported.error().text;
}

/// A Llama by its definition, in double, one sequence, nothing clever: logits of the last token.
class PlainLlama {
 public:
  explicit PlainLlama(const Checkpoint& checkpoint) : model_(checkpoint.run().model) {
    for (const auto& t : state_of(checkpoint).tensors) weights_[t.parameter.name] = t.weight;
  }

  std::vector<double> logits(const std::vector<int>& tokens) const {
    const std::size_t width = model_.width, head = model_.head_width();
    const std::size_t half = head / 2, group = model_.heads / model_.kv_heads;
    std::vector<std::vector<double>> x;
    for (const int token : tokens) {
      x.emplace_back(width);
      for (std::size_t i = 0; i < width; ++i)
        x.back()[i] = at("model.embed_tokens.weight")[static_cast<std::size_t>(token) * width + i];
    }
    for (std::uint32_t block = 0; block < model_.blocks; ++block) {
      const std::string prefix = "model.layers." + std::to_string(block) + ".";
      std::vector<std::vector<double>> q, k, v;
      for (std::size_t t = 0; t < x.size(); ++t) {
        const auto normed = norm(x[t], prefix + "input_layernorm.weight");
        q.push_back(turn(times(normed, prefix + "self_attn.q_proj.weight"), t, head, half));
        k.push_back(turn(times(normed, prefix + "self_attn.k_proj.weight"), t, head, half));
        v.push_back(times(normed, prefix + "self_attn.v_proj.weight"));
      }
      for (std::size_t t = 0; t < x.size(); ++t) {
        std::vector<double> mixed(width, 0);
        for (std::size_t h = 0; h < model_.heads; ++h) {
          std::vector<double> score(t + 1);
          double total = 0;
          for (std::size_t s = 0; s <= t; ++s) {
            double dot = 0;
            for (std::size_t i = 0; i < head; ++i)
              dot += q[t][h * head + i] * k[s][h / group * head + i];
            score[s] = std::exp(dot / std::sqrt(static_cast<double>(head)));
            total += score[s];
          }
          for (std::size_t s = 0; s <= t; ++s)
            for (std::size_t i = 0; i < head; ++i)
              mixed[h * head + i] += score[s] / total * v[s][h / group * head + i];
        }
        add(x[t], times(mixed, prefix + "self_attn.o_proj.weight"));
        const auto normed = norm(x[t], prefix + "post_attention_layernorm.weight");
        auto gate = times(normed, prefix + "mlp.gate_proj.weight");
        const auto up = times(normed, prefix + "mlp.up_proj.weight");
        for (std::size_t i = 0; i < gate.size(); ++i)
          gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
        add(x[t], times(gate, prefix + "mlp.down_proj.weight"));
      }
    }
    return times(norm(x.back(), "model.norm.weight"),
                 model_.tied ? "model.embed_tokens.weight" : "lm_head.weight");
  }

 private:
  const std::vector<float>& at(const std::string& name) const { return weights_.at(name); }
  static void add(std::vector<double>& to, const std::vector<double>& from) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  }
  std::vector<double> norm(const std::vector<double>& x, const std::string& gain) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double scale =
        1 / std::sqrt(squares / static_cast<double>(x.size()) + model_.norm_epsilon);
    std::vector<double> out(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) out[i] = x[i] * scale * at(gain)[i];
    return out;
  }
  std::vector<double> times(const std::vector<double>& x, const std::string& name) const {
    const auto& matrix = at(name);
    std::vector<double> out(matrix.size() / x.size(), 0);
    for (std::size_t row = 0; row < out.size(); ++row)
      for (std::size_t i = 0; i < x.size(); ++i) out[row] += matrix[row * x.size() + i] * x[i];
    return out;
  }
  std::vector<double> turn(std::vector<double> x,
                           std::size_t t,
                           std::size_t head,
                           std::size_t half) const {
    for (std::size_t start = 0; start < x.size(); start += head)
      for (std::size_t i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(t) *
            std::pow(model_.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(head));
        const double a = x[start + i], b = x[start + half + i];
        x[start + i] = a * std::cos(angle) - b * std::sin(angle);
        x[start + half + i] = b * std::cos(angle) + a * std::sin(angle);
      }
    return x;
  }

  ModelSpec model_;
  std::map<std::string, std::vector<float>> weights_;
};

}  // namespace

TEST_CASE("a llama2.c model gives the expected logits after its import") {
  const TemporaryFolder folder;
  const auto imported = import_model(stories, folder / "out");
  if (!imported.ok()) FAIL(imported.error().text);
  CHECK(imported->model.tied);
  CHECK(imported->model.kv_heads == 4);
  const auto checkpoint = Checkpoint::open(folder / "out");
  REQUIRE(checkpoint.ok());
  CHECK(checkpoint->run().step == 0);
  CHECK_FALSE(checkpoint->run().has_moments);
  const auto logits = PlainLlama(*checkpoint).logits({1, 403, 407, 261});
  CHECK(logits[378] == Approx(18.874388).margin(1e-4));  // expected.txt
  CHECK(logits[261] == Approx(4.498398).margin(1e-4));
  CHECK(logits[0] == Approx(-6.714255).margin(1e-4));
  CHECK(logits[426] == Approx(0.528587).margin(1e-4));
  const auto state = state_of(*checkpoint);
  for (const auto& t : state.tensors)
    for (const float moment : t.first) REQUIRE(moment == 0);
}

TEST_CASE("an untied llama2.c model has its head at the end") {
  const TemporaryFolder folder;
  std::string content = content_of(stories);
  const std::int32_t untied = -512;
  std::memcpy(content.data() + 20, &untied, 4);
  set_content(folder / "u.bin", content);
  CHECK(import_error(folder / "u.bin", folder / "out").find("its header needs 1187612") !=
        std::string::npos);
  std::vector<float> head(512 * 64);
  for (std::size_t i = 0; i < head.size(); ++i) head[i] = static_cast<float>(i);
  content.append(reinterpret_cast<const char*>(head.data()), head.size() * 4);
  set_content(folder / "u.bin", content);
  REQUIRE(import_model(folder / "u.bin", folder / "out").ok());
  const auto checkpoint = Checkpoint::open(folder / "out");
  CHECK_FALSE(checkpoint->run().model.tied);
  std::vector<float> read(head.size());
  REQUIRE(checkpoint->read_values("lm_head.weight", 0, read).ok());
  CHECK(read == head);
}

TEST_CASE("a llama2.c file of another size, or with an impossible header, is refused") {
  const TemporaryFolder folder;
  const std::string good = content_of(stories);
  const auto with = [&](std::size_t field, std::int32_t value) {
    std::string content = good;
    std::memcpy(content.data() + 4 * field, &value, 4);
    return content;
  };
  const std::pair<std::string, std::string> cases[] = {
      {good.substr(0, good.size() - 1), "1056539 bytes, its header needs 1056540"},
      {good + "x", "1056541 bytes, its header needs 1056540"},
      {good.substr(0, 27), "27 bytes are too few"},
      {"", "0 bytes are too few"},
      {with(0, 0), "dim is 0, at offset 0"},
      {with(2, -5), "n_layers is -5, at offset 8"},
      {with(5, INT32_MIN), "vocab_size is -2147483648"},
      {with(3, 7), "model.heads = 7 does not divide width = 64"},
      {with(1, INT32_MAX), "model.ffn_width = 2147483647 is out of range"},
  };
  for (const auto& [content, part] : cases) {
    set_content(folder / "bad.bin", content);
    const auto error = import_error(folder / "bad.bin", folder / "out");
    INFO(error);
    CHECK(error.find(part) != std::string::npos);
  }
  CHECK(import_error(folder / "none", folder / "out").find("does not exist") != std::string::npos);
}

TEST_CASE("L098 tied or untied, with or without a head in the file") {
  const TemporaryFolder folder;
  for (const bool llama : {false, true}) {
    const ModelSpec tied = llama ? tiny_llama(true) : tiny_gpt2(true);
    const ModelSpec untied = llama ? tiny_llama(false) : tiny_gpt2(false);
    auto plain = sources_of(tied);

    CHECK(import_hf(write_hf(folder, tied, plain), folder / "out")->notes.empty());
    CHECK(Checkpoint::open(folder / "out")->read_values("lm_head.weight", 0, {}).ok() == false);

    auto doubled = plain;
    doubled.push_back({{"lm_head.weight", plain[0].plan.shape}, plain[0].values});
    const auto noted = import_hf(write_hf(folder, tied, doubled), folder / "out");
    REQUIRE(noted.ok());
    REQUIRE(noted->notes.size() == 1);
    CHECK(noted->notes[0].find("tied embedding once more") != std::string::npos);

    doubled.back().values[3] += 1;
    CHECK(import_error(write_hf(folder, tied, doubled), folder / "out")
              .find("\"lm_head.weight\" differs from the embedding") != std::string::npos);

    const auto with_head = sources_of(untied);
    REQUIRE(import_hf(write_hf(folder, untied, with_head), folder / "out").ok());
    CHECK(state_of(*Checkpoint::open(folder / "out")).tensors.back().weight ==
          with_head.back().values);

    CHECK(import_error(write_hf(folder, untied, plain), folder / "out")
              .find("tensor \"lm_head.weight\" is missing, but the configuration says") !=
          std::string::npos);
    const auto made = import_hf(write_hf(folder, untied, plain), folder / "out",
                                {.allow_extra = false, .head_from_embedding = true});
    REQUIRE(made.ok());
    CHECK(made->notes.size() == 1);
    CHECK(state_of(*Checkpoint::open(folder / "out")).tensors.back().weight == plain[0].values);
  }
}

TEST_CASE("names without the family's prefix, and stored masks, are understood") {
  const TemporaryFolder folder;
  auto sources = sources_of(tiny_gpt2(), "transformer.");
  CHECK(sources[0].plan.name == "wte.weight");
  sources.push_back({{"h.0.attn.bias", {1, 1, 2, 2}}, {1, 0, 1, 1}});
  sources.push_back({{"h.0.attn.masked_bias", {1}}, {-1e4F}});
  const auto imported = import_hf(write_hf(folder, tiny_gpt2(), sources), folder / "out");
  if (!imported.ok()) FAIL(imported.error().text);
  const auto state = state_of(*Checkpoint::open(folder / "out"));
  CHECK(state.tensors[2].weight == sources[2].values);
  CHECK(
      import_hf(write_hf(folder, tiny_llama(), sources_of(tiny_llama(), "model.")), folder / "out")
          .ok());
}

TEST_CASE("missing, extra and misshapen tensors of a foreign model are named") {
  const TemporaryFolder folder;
  const ModelSpec model = tiny_llama();
  auto sources = sources_of(model);
  sources.pop_back();
  CHECK(import_error(write_hf(folder, model, sources), folder / "out")
            .find("tensor \"model.norm.weight\" is missing") != std::string::npos);
  sources = sources_of(model);
  sources.push_back({{"extra", {1}}, {1}});
  CHECK(import_error(write_hf(folder, model, sources), folder / "out")
            .find("the model has no tensor \"extra\"") != std::string::npos);
  CHECK(import_hf(write_hf(folder, model, sources), folder / "out",
                  {.allow_extra = true, .head_from_embedding = false})
            ->notes.size() == 1);
  sources = sources_of(model);
  std::swap(sources[2].plan.shape, sources[3].plan.shape);
  std::swap(sources[2].values, sources[3].values);
  CHECK(
      import_error(write_hf(folder, model, sources), folder / "out")
          .find(
              "tensor \"model.layers.0.self_attn.q_proj.weight\" is F32 (4, 8), the model needs") !=
      std::string::npos);
  const auto hf = write_hf(folder, model, sources_of(model));
  std::filesystem::rename(hf / "model.safetensors", hf / "pytorch_model.bin");
  CHECK(import_error(hf, folder / "out").find("pytorch_model.bin is not read") !=
        std::string::npos);
}

TEST_CASE("sharded models follow their index, within their folder") {
  const TemporaryFolder folder;
  const ModelSpec model = tiny_llama();
  const auto sources = sources_of(model);
  const auto hf = write_hf(folder, model, sources);
  std::filesystem::remove(hf / "model.safetensors");
  write_file_of(hf / "a.safetensors", {sources.begin(), sources.begin() + 5});
  write_file_of(hf / "b.safetensors", {sources.begin() + 5, sources.end()});
  nlohmann::json index;
  for (std::size_t i = 0; i < sources.size(); ++i)
    index["weight_map"][sources[i].plan.name] = i < 5 ? "a.safetensors" : "b.safetensors";
  const auto index_path = hf / "model.safetensors.index.json";
  set_content(index_path, index.dump());
  REQUIRE(import_hf(hf, folder / "out").ok());
  CHECK(state_of(*Checkpoint::open(folder / "out")).tensors.back().weight == sources.back().values);
  std::filesystem::remove_all(folder / "out");

  index["weight_map"]["model.norm.weight"] = "a.safetensors";
  set_content(index_path, index.dump());
  CHECK(import_error(hf, folder / "out").find("\"model.norm.weight\" is not in a.safetensors") !=
        std::string::npos);
  for (const char* name : {"../b.safetensors", "/etc/passwd", ".."}) {
    index["weight_map"]["model.norm.weight"] = name;
    set_content(index_path, index.dump());
    CHECK(import_error(hf, folder / "out").find("is not a plain file name") != std::string::npos);
  }
}

TEST_CASE("an exported model imports again, bit by bit") {
  const TemporaryFolder folder;
  for (const ModelSpec& model :
       {tiny_gpt2(true), tiny_gpt2(false), tiny_llama(true), tiny_llama(false)}) {
    std::filesystem::remove_all(folder / "hf");
    std::filesystem::remove_all(folder / "out");
    const TinyState state(model, 4);
    const auto views = state.views();
    const auto saved = save_checkpoint(folder / "checkpoints", tiny_run(model, 3), views);
    REQUIRE(saved.ok());
    const auto checkpoint = Checkpoint::open(*saved);
    REQUIRE(export_hf(*checkpoint, folder / "hf").ok());
    CHECK(export_hf(*checkpoint, folder / "hf").error().text.find("exists already") !=
          std::string::npos);
    const auto imported = import_model(folder / "hf", folder / "out");
    if (!imported.ok()) FAIL(imported.error().text);
    CHECK(imported->model == model);
    const auto again = state_of(*Checkpoint::open(folder / "out"));
    for (std::size_t i = 0; i < state.tensors.size(); ++i)
      CHECK(again.tensors[i].weight == state.tensors[i].weight);
    // A checkpoint's own folder is a Hugging Face folder too, shards and all; its moments are extra
    // files that an index does not name.
    std::filesystem::remove_all(folder / "out");
    const auto direct = import_model(*saved, folder / "out");
    if (!direct.ok()) FAIL(direct.error().text);
  }
}
