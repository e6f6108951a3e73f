#include "actors/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "actors/checkpoint/checkpoint_write.h"
#include "actors/data/strict_json.h"

namespace troupe {
namespace {

Status check_size(const std::filesystem::path& path, const FileRecord& expected) {
  std::error_code failure;
  const auto bytes = std::filesystem::file_size(path, failure);
  if (failure)
    return Error{ErrorCode::corrupt, fmt::format("{}: {}", path.string(), failure.message())};
  if (bytes != expected.bytes)
    return Error{ErrorCode::corrupt, fmt::format("{}: {} bytes, the manifest says {}",
                                                 path.string(), bytes, expected.bytes)};
  return {};
}

Status check_content(const std::filesystem::path& path, const FileRecord& expected) {
  const auto found = record_of(path);
  TROUPE_TRY(found);
  if (found->xxh3_128 != expected.xxh3_128)
    return Error{ErrorCode::corrupt,
                 fmt::format("{}: checksum {} does not match the manifest's {}", path.string(),
                             found->xxh3_128, expected.xxh3_128)};
  return {};
}

/// The tensors that the manifest says are in a file are those that the file says are in it.
Status check_names(const SafetensorsHeader& header,
                   const ShardRecord& shard,
                   const std::filesystem::path& path) {
  std::set<std::string> listed(shard.tensors.begin(), shard.tensors.end());
  for (const TensorEntry& entry : header.tensors)
    if (listed.erase(entry.name) == 0)
      return Error{ErrorCode::corrupt, fmt::format("{}: tensor \"{}\" is not in the manifest",
                                                   path.string(), printable(entry.name))};
  if (!listed.empty())
    return Error{ErrorCode::corrupt, fmt::format("{}: tensor \"{}\" of the manifest is missing",
                                                 path.string(), printable(*listed.begin()))};
  return {};
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::filesystem::path& folder,
                                    const CheckpointOptions& options) {
  Checkpoint opened;
  opened.folder_ = folder;
  const auto manifest_path = folder / manifest_name;
  const auto text = read_file(manifest_path, manifest_limit);
  if (!text.ok() && text.error().code == ErrorCode::not_found)
    return Error{ErrorCode::not_found,
                 fmt::format("{}: no complete checkpoint: it has no manifest", folder.string())};
  TROUPE_TRY(text);
  auto manifest = parse_manifest(*text, manifest_path.string());
  TROUPE_TRY(manifest);
  for (const ShardRecord& shard : manifest->files)
    TROUPE_TRY(check_size(folder / shard.file.name, shard.file));
  for (const ShardRecord& shard : manifest->files) {
    const auto path = folder / shard.file.name;
    if (!shard.file.name.ends_with(".safetensors")) continue;
    const auto file = opened.catalogue_.add(path);
    TROUPE_TRY(file);
    TROUPE_TRY(check_names((*file)->header(), shard, path));
  }
  const RunRecord& run = manifest->run;
  if (const Status whole =
          opened.catalogue_.check_against(run.model, run.has_moments, options.allow_extra);
      !whole.ok())
    return Error{whole.error().code, fmt::format("{}: {}", folder.string(), whole.error().text)};
  if (options.verify)
    for (const ShardRecord& shard : manifest->files)
      TROUPE_TRY(check_content(folder / shard.file.name, shard.file));
  opened.manifest_ = std::move(*manifest);
  return opened;
}

std::vector<std::string> Checkpoint::extra_tensors() const {
  std::set<std::string> known;
  for (const ParameterSpec& parameter : parameters_of(run().model)) {
    known.insert(parameter.name);
    known.insert(first_moment_name(parameter.name));
    known.insert(second_moment_name(parameter.name));
  }
  std::vector<std::string> extra;
  for (const auto& [name, place] : catalogue_.tensors())
    if (!known.contains(name)) extra.push_back(name);
  return extra;
}

Status Checkpoint::read_values(const std::string& name,
                               std::uint64_t first,
                               std::span<float> out) const {
  const auto place = catalogue_.find(name);
  if (place.entry == nullptr) {
    std::vector<std::string> known;
    for (const auto& item : catalogue_.tensors()) known.push_back(item.first);
    const std::string nearest = nearest_name(name, known);
    return Error{
        ErrorCode::not_found,
        fmt::format("{}: no tensor \"{}\"{}", folder_.string(), printable(name),
                    nearest.empty() ? "" : fmt::format("; the nearest is \"{}\"", nearest))};
  }
  if (first > place.entry->elements() || out.size() > place.entry->elements() - first)
    return Error{ErrorCode::invalid_input,
                 fmt::format("{}: tensor \"{}\" {} has {} elements, {} from {} on are wanted",
                             folder_.string(), printable(name), shape_text(place.entry->shape),
                             place.entry->elements(), out.size(), first)};
  return place.file->read(*place.entry, first, out);
}

Status Checkpoint::read(const StateTarget& target) const {
  const auto read_whole = [&](const std::string& name, std::span<float> out) -> Status {
    const auto place = catalogue_.find(name);
    if (place.entry != nullptr && place.entry->elements() != out.size())
      return Error{ErrorCode::invalid_input,
                   fmt::format("{}: tensor \"{}\" {} has {} elements, {} are wanted",
                               folder_.string(), printable(name), shape_text(place.entry->shape),
                               place.entry->elements(), out.size())};
    return read_values(name, 0, out);
  };
  TROUPE_TRY(read_whole(target.name, target.weight));
  if (!run().has_moments) {
    std::fill(target.first_moment.begin(), target.first_moment.end(), 0.0F);
    std::fill(target.second_moment.begin(), target.second_moment.end(), 0.0F);
    return {};
  }
  if (!target.first_moment.empty())
    TROUPE_TRY(read_whole(first_moment_name(target.name), target.first_moment));
  if (!target.second_moment.empty())
    TROUPE_TRY(read_whole(second_moment_name(target.name), target.second_moment));
  return {};
}

}  // namespace troupe
