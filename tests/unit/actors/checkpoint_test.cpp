#include "actors/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <cstring>

#include "actors/checkpoint/safetensors.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

using namespace troupe;

namespace {

std::filesystem::path must(Result<std::filesystem::path> result) {
  if (!result.ok()) FAIL(result.error().text);
  return *result;
}

/// Writes `state` as `owners` processes would, with layers split evenly in order.
std::filesystem::path save(const std::filesystem::path& parent,
                           const TinyState& state,
                           const RunRecord& run,
                           std::uint32_t owners) {
  const auto folder = must(begin_checkpoint(parent, run.step));
  std::vector<FileRecord> records;
  const std::uint32_t layers = layer_count(run.model);
  for (std::uint32_t i = 0; i < owners; ++i) {
    const auto views = state.views(layers * i / owners, layers * (i + 1) / owners);
    const auto written = write_shards(folder, {i, owners}, views);
    if (!written.ok()) FAIL(written.error().text);
    records.insert(records.end(), written->begin(), written->end());
  }
  return must(commit_checkpoint(folder, run, records));
}

std::string open_error(const std::filesystem::path& folder, CheckpointOptions options = {}) {
  const auto opened = Checkpoint::open(folder, options);
  REQUIRE_FALSE(opened.ok());
  return opened.error().text;
}

bool holds(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return true;
}

/// Rewrites the manifest so that it agrees with what is in the folder now.
void renew_manifest(const std::filesystem::path& folder) {
  auto manifest = parse_manifest(content_of(folder / manifest_name), "m");
  REQUIRE(manifest.ok());
  for (ShardRecord& shard : manifest->files) {
    shard.file = record_of(folder / shard.file.name).value();
    if (!shard.file.name.ends_with(".safetensors")) continue;
    shard.tensors.clear();
    const auto file = SafetensorsFile::open(folder / shard.file.name);
    for (const TensorEntry& entry : file->header().tensors) shard.tensors.push_back(entry.name);
  }
  set_content(folder / manifest_name, manifest_text(*manifest));
}

/// Rewrites a shard with other tensors.
void rewrite(const std::filesystem::path& path, const std::vector<TensorPlan>& tensors) {
  std::filesystem::remove(path);
  auto writer = SafetensorsWriter::create(path, tensors, {});
  REQUIRE(writer.ok());
  for (const TensorPlan& tensor : tensors) {
    std::uint64_t count = 1;
    for (const auto extent : tensor.shape) count *= extent;
    REQUIRE(writer->append(std::vector<float>(count, 1.0F)).ok());
  }
  REQUIRE(writer->finish().ok());
}

std::vector<TensorPlan> plans_of(const std::filesystem::path& path) {
  std::vector<TensorPlan> plans;
  const auto file = SafetensorsFile::open(path);
  for (const TensorEntry& entry : file->header().tensors)
    plans.push_back({entry.name, entry.shape});
  return plans;
}

}  // namespace

TEST_CASE("L094 what any number of owners wrote is read back bit by bit") {
  const TemporaryFolder folder(Where::memory);
  for (const ModelSpec& model :
       {tiny_gpt2(true), tiny_gpt2(false), tiny_llama(true), tiny_llama(false)})
    for (const std::uint32_t owners : {1, 2, 3, 5}) {
      const TinyState state(model, 3);
      const auto path = save(folder.path(), state, tiny_run(model, 20), owners);
      CHECK(path == folder / "step-00000020");
      const auto opened = Checkpoint::open(path);
      if (!opened.ok()) FAIL(opened.error().text);
      CHECK(opened->run() == tiny_run(model, 20));
      CHECK(state_of(*opened).tensors == state.tensors);
      CHECK(opened->extra_tensors().empty());
      std::vector<float> some(3);
      CHECK(opened->read_values(state.tensors[0].parameter.name, 5, some).ok());
      CHECK(some[0] == state.tensors[0].weight[5]);
    }
}

TEST_CASE("more owners than tensors leave no empty file") {
  const TemporaryFolder folder(Where::memory);
  const auto model = tiny_gpt2();
  const TinyState state(model, 1);
  const auto temporary = must(begin_checkpoint(folder.path(), 1));
  const auto none = write_shards(temporary, {0, 2}, {});
  REQUIRE(none.ok());
  CHECK(none->empty());
  const auto views = state.views();
  const auto all = write_shards(temporary, {1, 2}, views);
  REQUIRE(all.ok());
  CHECK(Checkpoint::open(must(commit_checkpoint(temporary, tiny_run(model, 1), *all))).ok());
}

TEST_CASE("weights, moments and index are named as Hugging Face names them") {
  const TemporaryFolder folder(Where::memory);
  const auto model = tiny_llama();
  const auto path = save(folder.path(), TinyState(model, 1), tiny_run(model, 2), 2);
  for (const char* name :
       {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        "optimizer-00001-of-00002.safetensors", "optimizer-00002-of-00002.safetensors",
        "config.json", "model.safetensors.index.json", "manifest.json"})
    CHECK(std::filesystem::is_regular_file(path / name));
  CHECK(holds(content_of(path / "model.safetensors.index.json"),
              "\"model.layers.2.mlp.up_proj.weight\": \"model-00002-of-00002.safetensors\""));
  CHECK(content_of(path / "model.safetensors.index.json").find("exp_avg") == std::string::npos);
  CHECK(SafetensorsFile::open(path / "optimizer-00001-of-00002.safetensors")
            ->header()
            .find("model.embed_tokens.weight.exp_avg_sq") != nullptr);
  CHECK(SafetensorsFile::open(path / "model-00001-of-00002.safetensors")
            ->header()
            .metadata.at("format") == "pt");
}

TEST_CASE("L012 loads are strict both ways: a missing tensor is named, an extra one is refused") {
  const TemporaryFolder folder(Where::memory);
  const auto model = tiny_gpt2();
  const auto path = save(folder.path(), TinyState(model, 1), tiny_run(model, 4), 2);
  const auto shard = path / "model-00002-of-00002.safetensors";
  auto plans = plans_of(shard);
  const auto whole = plans;

  plans.pop_back();
  rewrite(shard, plans);
  holds(open_error(path), "bytes, the manifest says");
  renew_manifest(path);
  holds(open_error(path), fmt::format("tensor \"{}\" is missing", whole.back().name));

  plans = whole;
  plans.push_back({"transformer.h.3.ln_1.weight", {8}});
  rewrite(shard, plans);
  renew_manifest(path);
  holds(open_error(path),
        "the model has no tensor \"transformer.h.3.ln_1.weight\"; the nearest is");
  const auto allowed = Checkpoint::open(path, {.verify = true, .allow_extra = true});
  REQUIRE(allowed.ok());
  CHECK(allowed->extra_tensors() == std::vector<std::string>{"transformer.h.3.ln_1.weight"});

  plans = whole;
  plans[0].shape = {plans[0].shape[0] + 1};
  rewrite(shard, plans);
  renew_manifest(path);
  holds(open_error(path), fmt::format("tensor \"{}\" is F32", plans[0].name));
}

TEST_CASE("a tensor that two owners wrote is refused with both files") {
  const TemporaryFolder folder(Where::memory);
  const auto model = tiny_gpt2();
  const TinyState state(model, 1);
  const auto temporary = must(begin_checkpoint(folder.path(), 1));
  auto records = write_shards(temporary, {0, 2}, state.views(0, 3)).value();
  const auto others = write_shards(temporary, {1, 2}, state.views(2, 9)).value();
  records.insert(records.end(), others.begin(), others.end());
  const auto refused = commit_checkpoint(temporary, tiny_run(model, 1), records);
  REQUIRE_FALSE(refused.ok());
  holds(refused.error().text, "tensor \"transformer.h.1.");
  holds(refused.error().text, "model-00001-of-00002.safetensors as well");
  CHECK_FALSE(std::filesystem::exists(folder / "step-00000001"));
}

TEST_CASE("a commit without all tensors is refused, and nothing is visible") {
  const TemporaryFolder folder(Where::memory);
  const auto model = tiny_gpt2();
  const TinyState state(model, 1);
  const auto temporary = must(begin_checkpoint(folder.path(), 1));
  const auto records = write_shards(temporary, {0, 2}, state.views(0, 3)).value();
  const auto refused = commit_checkpoint(temporary, tiny_run(model, 1), records);
  REQUIRE_FALSE(refused.ok());
  holds(refused.error().text, "tensor \"transformer.h.2.ln_1.weight\" is missing");
  CHECK_FALSE(latest_complete(folder.path())->folder.has_value());
}

TEST_CASE("every flipped byte of every file, and every truncation, is refused by file") {
  const TemporaryFolder folder(Where::memory);
  ModelSpec model = tiny_gpt2();
  model.blocks = 1;
  model.width = 2;
  model.heads = model.kv_heads = 1;
  model.ffn_width = 2;
  model.vocabulary = 2;
  model.context = 2;
  const auto path = save(folder.path(), TinyState(model, 1), tiny_run(model, 2), 1);
  std::size_t flips = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const std::string good = content_of(entry.path());
    const std::string name = entry.path().filename().string();
    // Each byte of headers and small files, then every 7th.
    for (std::size_t at = 0; at < good.size(); at += at < 600 ? 1 : 7) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
      set_content(entry.path(), bad);
      INFO(name << " byte " << at);
      const auto opened = Checkpoint::open(path);
      REQUIRE_FALSE(opened.ok());
      CHECK(opened.error().text.find(name) != std::string::npos);
      ++flips;
    }
    for (std::size_t size = 0; size < good.size(); size += 97) {
      set_content(entry.path(), good.substr(0, size));
      CHECK_FALSE(Checkpoint::open(path, {.verify = false, .allow_extra = false}).ok());
    }
    set_content(entry.path(), good + "x");
    CHECK_FALSE(Checkpoint::open(path, {.verify = false, .allow_extra = false}).ok());
    set_content(entry.path(), good);
  }
  CHECK(flips > 2000);
  CHECK(Checkpoint::open(path).ok());
}

TEST_CASE("a missing shard, a link in its place, and a folder without manifest are refused") {
  const TemporaryFolder folder(Where::memory);
  const auto model = tiny_gpt2();
  const auto path = save(folder.path(), TinyState(model, 1), tiny_run(model, 4), 2);
  const auto shard = path / "optimizer-00001-of-00002.safetensors";
  std::filesystem::rename(shard, folder / "kept");
  holds(open_error(path), "optimizer-00001-of-00002.safetensors");
  std::filesystem::create_symlink(folder / "kept", shard);
  holds(open_error(path), "links are not followed");
  std::filesystem::remove(path / manifest_name);
  holds(open_error(path), "no complete checkpoint: it has no manifest");
  holds(open_error(folder / "none"), "no complete checkpoint");
}

TEST_CASE("unknown names and other sizes are refused when reading") {
  const TemporaryFolder folder(Where::memory);
  const auto model = tiny_gpt2();
  const auto opened =
      Checkpoint::open(save(folder.path(), TinyState(model, 1), tiny_run(model, 4), 1));
  REQUIRE(opened.ok());
  std::vector<float> values(8);
  const auto unknown = opened->read({"transformer.h.0.ln_1.wieght", values, {}, {}});
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.error().code == ErrorCode::not_found);
  holds(unknown.error().text, "the nearest is \"transformer.h.0.ln_1.weight\"");
  const auto other =
      opened->read({"transformer.h.0.ln_1.weight", std::span(values).first(7), {}, {}});
  REQUIRE_FALSE(other.ok());
  holds(other.error().text, "has 8 elements, 7 are wanted");
}

TEST_CASE("L087 the newest complete checkpoint is found, and what was skipped is said") {
  const TemporaryFolder folder(Where::memory);
  const auto model = tiny_gpt2();
  CHECK_FALSE(latest_complete(folder / "none")->folder.has_value());
  for (const std::uint64_t step : {10, 20, 30})
    save(folder.path(), TinyState(model, static_cast<float>(step)), tiny_run(model, step), 2);
  must(begin_checkpoint(folder.path(), 40));
  std::filesystem::create_directory(folder / "step-00000050");
  std::filesystem::create_directory(folder / "other");
  std::filesystem::resize_file(folder / "step-00000030" / "config.json", 3);
  std::filesystem::copy(folder / "step-00000010", folder / "step-00000025",
                        std::filesystem::copy_options::recursive);
  const auto latest = latest_complete(folder.path());
  REQUIRE(latest.ok());
  REQUIRE(latest->folder.has_value());
  CHECK(*latest->folder == folder / "step-00000020");
  REQUIRE(latest->skipped.size() == 4);
  holds(latest->skipped[0].problem->text, "step-00000050: no complete checkpoint");
  holds(latest->skipped[1].problem->text, ".step-00000040.writing: the save was interrupted");
  holds(latest->skipped[2].problem->text, "config.json: 3 bytes");
  holds(latest->skipped[3].problem->text, "step-00000025: its manifest is of step 10");
  const auto listed = list_checkpoints(folder.path(), true);
  REQUIRE(listed->size() == 6);
  CHECK_FALSE((*listed)[0].problem.has_value());

  // Pruning keeps complete ones only, and never touches what is damaged but named like one.
  const auto removed = prune_checkpoints(folder.path(), 1);
  REQUIRE(removed.ok());
  CHECK(removed->size() == 2);
  CHECK_FALSE(std::filesystem::exists(folder / "step-00000010"));
  CHECK(std::filesystem::exists(folder / "step-00000020" / "manifest.json"));
  CHECK(std::filesystem::exists(folder / "step-00000030"));
  CHECK(std::filesystem::exists(folder / "other"));
  CHECK_FALSE(std::filesystem::exists(folder / ".step-00000040.writing"));
}

TEST_CASE("saving a step again replaces its checkpoint") {
  const TemporaryFolder folder(Where::memory);
  const auto model = tiny_gpt2();
  save(folder.path(), TinyState(model, 1), tiny_run(model, 4), 3);
  const TinyState again(model, 2);
  const auto path = save(folder.path(), again, tiny_run(model, 4), 1);
  CHECK(state_of(*Checkpoint::open(path)).tensors == again.tensors);
  CHECK_FALSE(std::filesystem::exists(path / "model-00001-of-00003.safetensors"));
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path()))
    ++entries;
  CHECK(entries == 1);
}
