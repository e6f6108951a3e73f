#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "actors/checkpoint/convert.h"
#include "actors/checkpoint/convert_write.h"
#include "actors/checkpoint/hf_config.h"
#include "actors/checkpoint/safetensors.h"
#include "actors/data/mapped_file.h"
#include "actors/data/strict_json.h"

namespace troupe {
namespace {

constexpr std::uint64_t json_file_limit = 64 << 20;
constexpr const char* head_name = "lm_head.weight";

using Place = TensorCatalogue::Place;

Error bad(std::string text) {
  return {ErrorCode::invalid_input, std::move(text)};
}

/// A file whose name we chose may be a link, as in Hugging Face's own cache.
std::filesystem::path followed(const std::filesystem::path& path) {
  std::error_code failure;
  auto real = std::filesystem::canonical(path, failure);
  return failure ? path : real;
}

/// The shards that an index names, each tensor in the file it is said to be in.
Status open_shards(const std::filesystem::path& source, TensorCatalogue& catalogue) {
  const auto index_path = source / "model.safetensors.index.json";
  const auto text = read_file(followed(index_path), json_file_limit);
  TROUPE_TRY(text);
  const auto index = parse_json(*text, index_path.string());
  TROUPE_TRY(index);
  if (!index->is_object() || !index->contains("weight_map") || !index->at("weight_map").is_object())
    return bad(index_path.string() + ": \"weight_map\" must be an object of tensors and files");
  const auto& map = index->at("weight_map");
  std::set<std::string> names;
  for (const auto& [tensor, file] : map.items()) {
    if (!file.is_string() || !is_plain_name(file.get_ref<const std::string&>()))
      return bad(fmt::format("{}: tensor \"{}\": {} is not a plain file name", index_path.string(),
                             printable(tensor), printable(file.dump())));
    names.insert(file.get<std::string>());
  }
  for (const std::string& name : names) TROUPE_TRY(catalogue.add(source / name));
  for (const auto& [tensor, file] : map.items()) {
    const Place place = catalogue.find(tensor);
    if (place.entry == nullptr || place.file->path().filename() != file.get<std::string>())
      return bad(fmt::format("{}: tensor \"{}\" is not in {}", index_path.string(),
                             printable(tensor), file.get<std::string>()));
  }
  return {};
}

Status open_weights(const std::filesystem::path& source, TensorCatalogue& catalogue) {
  const auto has = [&](const char* name) { return std::filesystem::exists(source / name); };
  if (has("model.safetensors")) {
    TROUPE_TRY(catalogue.add(followed(source / "model.safetensors")));
    return {};
  }
  if (has("model.safetensors.index.json")) return open_shards(source, catalogue);
  return Error{ErrorCode::not_found,
               fmt::format("{}: neither model.safetensors nor model.safetensors.index.json{}",
                           source.string(),
                           has("pytorch_model.bin")
                               ? "; pytorch_model.bin is not read, as such files can run code"
                               : "")};
}

/// Tables that some versions store beside the weights and that are computed here.
bool is_computed_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

/// The tensor of a parameter, under its name or without the family's prefix.
Place find_source(const TensorCatalogue& catalogue, const std::string& name) {
  const Place place = catalogue.find(name);
  if (place.entry != nullptr) return place;
  for (const std::string_view prefix : {"transformer.", "model."})
    if (name.starts_with(prefix)) return catalogue.find(name.substr(prefix.size()));
  return {};
}

Status check_source(Place place, const ParameterSpec& parameter) {
  const TensorEntry& entry = *place.entry;
  const bool readable =
      entry.type == FileType::f32 || entry.type == FileType::bf16 || entry.type == FileType::f16;
  if (readable && entry.shape == parameter.shape) return {};
  return bad(fmt::format("{}: tensor \"{}\" is {} {}, the model needs F32, BF16 or F16 {}",
                         place.file->path().string(), printable(entry.name), to_string(entry.type),
                         shape_text(entry.shape), shape_text(parameter.shape)));
}

Result<bool> equal_values(Place a, Place b) {
  if (a.entry->shape != b.entry->shape) return false;
  std::vector<float> left(piece_bytes / 8), right(piece_bytes / 8);
  for (std::uint64_t first = 0; first < a.entry->elements(); first += left.size()) {
    const std::size_t count =
        static_cast<std::size_t>(std::min<std::uint64_t>(left.size(), a.entry->elements() - first));
    TROUPE_TRY(a.file->read(*a.entry, first, std::span(left).first(count)));
    TROUPE_TRY(b.file->read(*b.entry, first, std::span(right).first(count)));
    if (!std::equal(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(count), right.begin()))
      return false;
  }
  return true;
}

/// Where each parameter comes from.
struct Sources {
  std::map<std::string, Place> places;
  std::vector<std::string> notes;
};

/// A head beside a tied table must be the table itself.
Status check_tied_head(const TensorCatalogue& catalogue, Place table, Sources& sources) {
  const Place head = catalogue.find(head_name);
  if (head.entry == nullptr) return {};
  const auto equal = equal_values(head, table);
  TROUPE_TRY(equal);
  if (!*equal)
    return bad(
        fmt::format("{}: \"{}\" differs from the embedding, but the configuration says "
                    "\"tie_word_embeddings\": true",
                    head.file->path().string(), head_name));
  sources.notes.push_back(fmt::format("{} is the tied embedding once more; left out", head_name));
  return {};
}

Status check_leftovers(const TensorCatalogue& catalogue,
                       const std::set<std::string>& used,
                       bool tied,
                       const ImportOptions& options,
                       Sources& sources) {
  for (const auto& [name, place] : catalogue.tensors()) {
    if (used.contains(name) || is_computed_buffer(name) || (tied && name == head_name)) continue;
    if (!options.allow_extra)
      return bad(fmt::format("{}: the model has no tensor \"{}\"", place.file->path().string(),
                             printable(name)));
    sources.notes.push_back(fmt::format("{}: not in the model; left out", printable(name)));
  }
  return {};
}

Result<Sources> find_sources(const std::filesystem::path& source,
                             const ModelSpec& model,
                             const TensorCatalogue& catalogue,
                             const ImportOptions& options) {
  Sources sources;
  std::set<std::string> used;
  const auto parameters = parameters_of(model);
  for (const ParameterSpec& parameter : parameters) {
    Place place = find_source(catalogue, parameter.name);
    if (place.entry == nullptr && parameter.name == head_name && options.head_from_embedding) {
      place = sources.places.at(parameters[0].name);
      sources.notes.push_back(fmt::format("{} is missing; made from the embedding", head_name));
    }
    if (place.entry == nullptr)
      return bad(fmt::format("{}: tensor \"{}\" is missing{}", source.string(), parameter.name,
                             parameter.name == head_name
                                 ? ", but the configuration says \"tie_word_embeddings\": false"
                                 : ""));
    TROUPE_TRY(check_source(place, parameter));
    used.insert(place.entry->name);
    sources.places[parameter.name] = place;
  }
  if (model.tied)
    TROUPE_TRY(check_tied_head(catalogue, sources.places.at(parameters[0].name), sources));
  TROUPE_TRY(check_leftovers(catalogue, used, model.tied, options, sources));
  return sources;
}

}  // namespace

Result<Imported> import_hf(const std::filesystem::path& source,
                           const std::filesystem::path& out,
                           const ImportOptions& options) {
  const auto config_path = source / "config.json";
  const auto config = read_file(followed(config_path), json_file_limit);
  TROUPE_TRY(config);
  const auto model = model_from_hf_config(*config, config_path.string());
  TROUPE_TRY(model);
  TensorCatalogue catalogue;
  TROUPE_TRY(open_weights(source, catalogue));
  auto sources = find_sources(source, *model, catalogue, options);
  TROUPE_TRY(sources);
  TROUPE_TRY(write_imported(
      out, *model,
      [&](const ParameterSpec& parameter, std::uint64_t first, std::span<float> values) {
        const Place place = sources->places.at(parameter.name);
        return place.file->read(*place.entry, first, values);
      }));
  return Imported{out, *model, std::move(sources->notes)};
}

Result<Imported> import_model(const std::filesystem::path& source,
                              const std::filesystem::path& out,
                              const ImportOptions& options) {
  std::error_code failure;
  const auto status = std::filesystem::status(source, failure);
  if (status.type() == std::filesystem::file_type::not_found)
    return Error{ErrorCode::not_found, fmt::format("{}: does not exist", source.string())};
  return std::filesystem::is_directory(status) ? import_hf(source, out, options)
                                               : import_llama2c(source, out);
}

Status export_hf(const Checkpoint& checkpoint, const std::filesystem::path& out) {
  const auto temporary = begin_beside(out);
  TROUPE_TRY(temporary);
  const auto write = [&]() -> Status {
    const ModelSpec& model = checkpoint.run().model;
    TROUPE_TRY(write_values(
        *temporary / "model.safetensors", model,
        [&](const ParameterSpec& parameter, std::uint64_t first, std::span<float> values) {
          return checkpoint.read_values(parameter.name, first, values);
        }));
    TROUPE_TRY(write_file(*temporary / "config.json", hf_config_text(model)));
    TROUPE_TRY(sync_folder(*temporary));
    return rename_durably(*temporary, out);
  };
  Status written = write();
  if (!written.ok()) (void)remove_tree(*temporary);
  return written;
}

}  // namespace troupe
