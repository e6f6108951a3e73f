#include "actors/checkpoint/manifest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "actors/data/strict_json.h"
#include "planner/model_json.h"

namespace troupe {
namespace {

using nlohmann::json;

constexpr const char* format_name = "troupe checkpoint";

std::string checksum_of(const json& body) {
  const std::string text = body.dump(1);
  return to_hex(XXH3_128bits(text.data(), text.size()));
}

json body_of(const Manifest& manifest) {
  json files = json::array();
  for (const ShardRecord& shard : manifest.files)
    files.push_back({{"name", shard.file.name},
                     {"bytes", shard.file.bytes},
                     {"xxh3_128", shard.file.xxh3_128},
                     {"tensors", shard.tensors}});
  const RunRecord& run = manifest.run;
  return {{"format", format_name},
          {"version", manifest_version},
          {"model", model_json(run.model)},
          {"step", run.step},
          {"seed", run.seed},
          {"data_position", run.data_position},
          {"adam_step", run.adam_step},
          {"skipped_steps", run.skipped_steps},
          {"has_moments", run.has_moments},
          {"files", std::move(files)}};
}

/// Takes the keys of one object one by one; what is left at the end is unknown. The first problem
/// is kept.
class Taker {
 public:
  Taker(const json& object, std::string where, std::optional<Error>& problem)
      : object_(object), where_(std::move(where)), problem_(problem) {
    if (!object_.is_object()) refuse("must be an object");
  }

  std::uint64_t number(const char* key, std::uint64_t most = UINT64_MAX) {
    const json* const value = take(key);
    if (value == nullptr) return 0;
    if (value->is_number_unsigned() && value->get<std::uint64_t>() <= most)
      return value->get<std::uint64_t>();
    refuse(fmt::format("\"{}\" must be a whole number up to {}", key, most));
    return 0;
  }
  std::uint32_t number32(const char* key) {
    return static_cast<std::uint32_t>(number(key, UINT32_MAX));
  }
  double real(const char* key) {
    const json* const value = take(key);
    if (value != nullptr && !value->is_number())
      refuse(fmt::format("\"{}\" must be a number", key));
    return value != nullptr && value->is_number() ? value->get<double>() : 0;
  }
  bool flag(const char* key) {
    const json* const value = take(key);
    if (value != nullptr && !value->is_boolean())
      refuse(fmt::format("\"{}\" must be true or false", key));
    return value != nullptr && value->is_boolean() && value->get<bool>();
  }
  std::string text(const char* key) {
    const json* const value = take(key);
    if (value != nullptr && !value->is_string()) refuse(fmt::format("\"{}\" must be a text", key));
    return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
  }
  const json* list(const char* key) {
    const json* const value = take(key);
    if (value == nullptr || value->is_array()) return value;
    refuse(fmt::format("\"{}\" must be a list", key));
    return nullptr;
  }
  const json* take(const char* key) {
    if (!object_.is_object()) return nullptr;
    taken_.insert(key);
    const auto found = object_.find(key);
    if (found != object_.end()) return &*found;
    refuse(fmt::format("\"{}\" is missing", key));
    return nullptr;
  }
  void no_more() {
    if (!object_.is_object()) return;
    for (const auto& [key, value] : object_.items())
      if (!taken_.contains(key)) refuse(fmt::format("unknown key \"{}\"", printable(key)));
  }
  void refuse(const std::string& why) {
    if (!problem_) problem_ = Error{ErrorCode::corrupt, fmt::format("{}: {}", where_, why)};
  }

 private:
  const json& object_;
  std::string where_;
  std::optional<Error>& problem_;
  std::set<std::string> taken_;
};

ModelSpec take_model(const json& object, const std::string& where, std::optional<Error>& problem) {
  Taker keys(object, where + ": model", problem);
  ModelSpec model;
  const std::string family = keys.text("family");
  if (family != "gpt2" && family != "llama") keys.refuse("\"family\" must be gpt2 or llama");
  model.family = family == "llama" ? ModelFamily::llama : ModelFamily::gpt2;
  model.blocks = keys.number32("blocks");
  model.width = keys.number32("width");
  model.heads = keys.number32("heads");
  model.kv_heads = keys.number32("kv_heads");
  model.ffn_width = keys.number32("ffn_width");
  model.vocabulary = keys.number32("vocabulary");
  model.context = keys.number32("context");
  model.tied = keys.flag("tied");
  model.norm_epsilon = keys.real("norm_epsilon");
  model.rope_theta = keys.real("rope_theta");
  model.dropout = keys.real("dropout");
  keys.no_more();
  if (problem) return model;
  if (const Status legal = validate(model); !legal.ok()) keys.refuse(legal.error().text);
  return model;
}

ShardRecord take_file(const json& object, const std::string& where, std::optional<Error>& problem) {
  Taker keys(object, where, problem);
  ShardRecord shard;
  shard.file.name = keys.text("name");
  if (!is_plain_name(shard.file.name))
    keys.refuse(fmt::format("\"{}\" is not a plain file name", printable(shard.file.name)));
  shard.file.bytes = keys.number("bytes");
  shard.file.xxh3_128 = keys.text("xxh3_128");
  if (shard.file.xxh3_128.size() != 32) keys.refuse("\"xxh3_128\" must have 32 digits");
  if (const json* const tensors = keys.list("tensors"))
    for (const json& name : *tensors) {
      if (name.is_string())
        shard.tensors.push_back(name.get<std::string>());
      else
        keys.refuse("\"tensors\" must hold names");
    }
  keys.no_more();
  return shard;
}

Manifest take_manifest(const json& object, const std::string& file, std::optional<Error>& problem) {
  Taker keys(object, file, problem);
  Manifest manifest;
  if (keys.text("format") != format_name) keys.refuse("not the manifest of a Troupe checkpoint");
  if (const auto version = keys.number("version"); version != manifest_version)
    keys.refuse(
        fmt::format("version {}; this program reads version {}", version, manifest_version));
  RunRecord& run = manifest.run;
  if (const json* const model = keys.take("model")) run.model = take_model(*model, file, problem);
  run.step = keys.number("step");
  run.seed = keys.number("seed");
  run.data_position = keys.number("data_position");
  run.adam_step = keys.number("adam_step");
  run.skipped_steps = keys.number("skipped_steps");
  run.has_moments = keys.flag("has_moments");
  if (run.adam_step > run.step || run.step - run.adam_step != run.skipped_steps)
    keys.refuse(fmt::format("adam_step {} and skipped_steps {} do not add up to step {}",
                            run.adam_step, run.skipped_steps, run.step));
  std::set<std::string> names;
  if (const json* const files = keys.list("files"))
    for (const json& entry : *files) {
      manifest.files.push_back(
          take_file(entry, fmt::format("{}: file {}", file, manifest.files.size()), problem));
      if (!names.insert(manifest.files.back().file.name).second)
        keys.refuse(
            fmt::format("file \"{}\" is listed twice", printable(manifest.files.back().file.name)));
    }
  keys.take("checksum");
  keys.no_more();
  return manifest;
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  json body = body_of(manifest);
  body["checksum"] = checksum_of(body);
  return body.dump(1) + "\n";
}

Result<Manifest> parse_manifest(std::string_view text, std::string_view file) {
  const auto damaged = [&](std::string_view why) {
    return Error{ErrorCode::corrupt, fmt::format("{}: {}", file, why)};
  };
  auto parsed = parse_json(text, file);
  if (!parsed.ok()) return Error{ErrorCode::corrupt, parsed.error().text};
  std::optional<Error> problem;
  Manifest manifest = take_manifest(*parsed, std::string(file), problem);
  if (problem) return *problem;
  json body = std::move(*parsed);
  const json checksum = body["checksum"];
  body.erase("checksum");
  if (checksum != checksum_of(body)) return damaged("its checksum does not match");
  if (manifest_text(manifest) != text) return damaged("not as it was written");
  return manifest;
}

}  // namespace troupe
