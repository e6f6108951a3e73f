#include "actors/checkpoint/checkpoint_write.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "actors/checkpoint/hf_config.h"
#include "actors/checkpoint/safetensors.h"
#include "actors/checkpoint/tensor_catalogue.h"
#include "actors/data/mapped_file.h"

namespace troupe {
namespace {

std::string shard_name(std::string_view kind, ShardIndex shard) {
  return fmt::format("{}-{:05}-of-{:05}.safetensors", kind, shard.index + 1, shard.count);
}

/// Values and the header entry that announces them.
struct NamedValues {
  TensorPlan plan;
  std::span<const float> values;
};

Result<FileRecord> write_tensors(const std::filesystem::path& path,
                                 const std::vector<NamedValues>& tensors,
                                 const WriteHook* hook) {
  std::vector<TensorPlan> plans;
  plans.reserve(tensors.size());
  for (const NamedValues& tensor : tensors) plans.push_back(tensor.plan);
  auto writer = SafetensorsWriter::create(path, plans, {{"format", "pt"}}, hook);
  TROUPE_TRY(writer);
  for (const NamedValues& tensor : tensors) TROUPE_TRY(writer->append(tensor.values));
  return writer->finish();
}

/// What transformers needs to find a tensor in sharded weights.
std::string index_text(const TensorCatalogue& catalogue) {
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  std::uint64_t total = 0;
  for (const auto& [name, place] : catalogue.tensors()) {
    if (!place.file->path().filename().string().starts_with("model-")) continue;
    map[name] = place.file->path().filename().string();
    total += place.entry->end - place.entry->begin;
  }
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total;
  index["weight_map"] = std::move(map);
  return index.dump(2) + "\n";
}

Result<Manifest> manifest_of(const std::filesystem::path& folder,
                             const RunRecord& run,
                             const std::vector<FileRecord>& shards,
                             const TensorCatalogue& catalogue) {
  Manifest manifest;
  manifest.run = run;
  for (const FileRecord& shard : shards) {
    ShardRecord record{shard, {}};
    for (const auto& [name, place] : catalogue.tensors())
      if (place.file->path().filename() == shard.name) {
        record.tensors.push_back(name);
        if (place.file->bytes() != shard.bytes)
          return Error{ErrorCode::corrupt, fmt::format("{}: {} bytes were written, {} are there",
                                                       (folder / shard.name).string(), shard.bytes,
                                                       place.file->bytes())};
      }
    manifest.files.push_back(std::move(record));
  }
  std::sort(manifest.files.begin(), manifest.files.end(),
            [](const auto& a, const auto& b) { return a.file.name < b.file.name; });
  return manifest;
}

}  // namespace

std::string checkpoint_name(std::uint64_t step) {
  return fmt::format("step-{:08}", step);
}

std::string first_moment_name(std::string_view tensor) {
  return fmt::format("{}.exp_avg", tensor);
}

std::string second_moment_name(std::string_view tensor) {
  return fmt::format("{}.exp_avg_sq", tensor);
}

Result<std::filesystem::path> begin_checkpoint(const std::filesystem::path& parent,
                                               std::uint64_t step,
                                               const WriteHook* hook) {
  std::error_code failure;
  std::filesystem::create_directories(parent, failure);
  if (failure) return file_error(parent, "make the folder", failure.value());
  const auto folder = parent / fmt::format(".{}.writing", checkpoint_name(step));
  if (std::filesystem::exists(std::filesystem::symlink_status(folder, failure)))
    TROUPE_TRY(remove_tree(folder, hook));
  TROUPE_TRY(make_folder(folder, hook));
  return folder;
}

Result<std::vector<FileRecord>> write_shards(const std::filesystem::path& temporary_folder,
                                             ShardIndex shard,
                                             std::span<const StateView> state,
                                             const WriteHook* hook) {
  EXPECTS(shard.index < shard.count);
  std::vector<FileRecord> records;
  if (state.empty()) return records;
  std::vector<NamedValues> weights, moments;
  for (const StateView& tensor : state) {
    std::uint64_t elements = 1;
    for (const std::uint64_t extent : tensor.shape) elements *= extent;
    EXPECTS(tensor.weight.size() == elements);
    EXPECTS(tensor.first_moment.size() == tensor.second_moment.size());
    EXPECTS(tensor.first_moment.size() == state[0].first_moment.size() ||
            !tensor.first_moment.empty());
    weights.push_back({{tensor.name, tensor.shape}, tensor.weight});
    if (tensor.first_moment.empty()) continue;
    EXPECTS(tensor.first_moment.size() == elements);
    moments.push_back({{first_moment_name(tensor.name), tensor.shape}, tensor.first_moment});
    moments.push_back({{second_moment_name(tensor.name), tensor.shape}, tensor.second_moment});
  }
  auto model_file = write_tensors(temporary_folder / shard_name("model", shard), weights, hook);
  TROUPE_TRY(model_file);
  records.push_back(std::move(*model_file));
  if (moments.empty()) return records;
  auto moment_file =
      write_tensors(temporary_folder / shard_name("optimizer", shard), moments, hook);
  TROUPE_TRY(moment_file);
  records.push_back(std::move(*moment_file));
  return records;
}

Status commit_checkpoint_as(const std::filesystem::path& folder,
                            const std::filesystem::path& temporary_folder,
                            const RunRecord& run,
                            const std::vector<FileRecord>& shards,
                            const WriteHook* hook) {
  EXPECTS(run.adam_step + run.skipped_steps == run.step);
  TensorCatalogue catalogue;
  for (const FileRecord& shard : shards) {
    if (!is_plain_name(shard.name))
      return Error{ErrorCode::invalid_input, "a shard's name is not a plain file name"};
    TROUPE_TRY(catalogue.add(temporary_folder / shard.name));
  }
  if (const Status whole = catalogue.check_against(run.model, run.has_moments, false); !whole.ok())
    return Error{whole.error().code,
                 fmt::format("{}: {}", temporary_folder.string(), whole.error().text)};
  auto manifest = manifest_of(temporary_folder, run, shards, catalogue);
  TROUPE_TRY(manifest);
  const std::pair<std::string, std::string> described[] = {
      {"config.json", hf_config_text(run.model)},
      {"model.safetensors.index.json", index_text(catalogue)}};
  for (const auto& [name, text] : described) {
    auto written = write_file(temporary_folder / name, text, hook);
    TROUPE_TRY(written);
    manifest->files.push_back({std::move(*written), {}});
  }
  TROUPE_TRY(write_file(temporary_folder / manifest_name, manifest_text(*manifest), hook));
  TROUPE_TRY(sync_folder(temporary_folder, hook));
  return rename_durably(temporary_folder, folder, hook);
}

Result<std::filesystem::path> commit_checkpoint(const std::filesystem::path& temporary_folder,
                                                const RunRecord& run,
                                                const std::vector<FileRecord>& shards,
                                                const WriteHook* hook) {
  const auto folder = temporary_folder.parent_path() / checkpoint_name(run.step);
  TROUPE_TRY(commit_checkpoint_as(folder, temporary_folder, run, shards, hook));
  return folder;
}

Result<std::filesystem::path> save_checkpoint(const std::filesystem::path& parent,
                                              const RunRecord& run,
                                              std::span<const StateView> state,
                                              const WriteHook* hook) {
  auto folder = begin_checkpoint(parent, run.step, hook);
  TROUPE_TRY(folder);
  auto records = write_shards(*folder, {0, 1}, state, hook);
  TROUPE_TRY(records);
  return commit_checkpoint(*folder, run, *records, hook);
}

}  // namespace troupe
