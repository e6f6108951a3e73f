#include "actors/checkpoint/manifest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <nlohmann/json.hpp>
#include <set>

#include "actors/data/strict_json.h"
#include "planner/json_object.h"
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
          {"data_fingerprint", run.data_fingerprint},
          {"adam_step", run.adam_step},
          {"skipped_steps", run.skipped_steps},
          {"has_moments", run.has_moments},
          {"files", std::move(files)}};
}

/// Throws JsonRefused, as every reader here.
void refuse_if(bool wrong, const std::string& why) {
  if (wrong) throw JsonRefused{why};
}

ShardRecord read_file_record(const json& value, const std::string& path) {
  const JsonObject object(value, path, {"name", "bytes", "xxh3_128", "tensors"});
  ShardRecord shard;
  shard.file.name = object.string("name");
  refuse_if(!is_plain_name(shard.file.name), fmt::format("{}.name \"{}\" is not a plain file name",
                                                         path, printable(shard.file.name)));
  shard.file.bytes = object.u64("bytes");
  shard.file.xxh3_128 = object.string("xxh3_128");
  refuse_if(shard.file.xxh3_128.size() != 32, path + ".xxh3_128 does not have 32 digits");
  for (const json& name : object.array("tensors"))
    shard.tensors.push_back(
        JsonObject::string_of(name, fmt::format("{}.tensors[{}]", path, shard.tensors.size())));
  return shard;
}

std::vector<ShardRecord> read_file_records(const json& list) {
  std::vector<ShardRecord> files;
  std::set<std::string> names;
  for (const json& entry : list) {
    files.push_back(read_file_record(entry, fmt::format("files[{}]", files.size())));
    const std::string& name = files.back().file.name;
    refuse_if(!names.insert(name).second,
              fmt::format("file \"{}\" is listed twice", printable(name)));
  }
  return files;
}

Manifest read_manifest(const json& value) {
  const JsonObject object(
      value, "manifest",
      {"format", "version", "model", "step", "seed", "data_position", "data_fingerprint",
       "adam_step", "skipped_steps", "has_moments", "files", "checksum"});
  refuse_if(object.string("format") != format_name, "not the manifest of a Troupe checkpoint");
  const std::uint64_t version = object.u64("version");
  refuse_if(version != manifest_version,
            fmt::format("version {}; this program reads version {}", version, manifest_version));
  Manifest manifest;
  RunRecord& run = manifest.run;
  run.model = read_model(object.at("model"), "model");
  run.step = object.u64("step");
  run.seed = object.u64("seed");
  run.data_position = object.u64("data_position");
  run.data_fingerprint = object.u64("data_fingerprint");
  run.adam_step = object.u64("adam_step");
  run.skipped_steps = object.u64("skipped_steps");
  run.has_moments = object.boolean("has_moments");
  refuse_if(run.adam_step > run.step || run.step - run.adam_step != run.skipped_steps,
            fmt::format("adam_step {} and skipped_steps {} do not add up to step {}", run.adam_step,
                        run.skipped_steps, run.step));
  manifest.files = read_file_records(object.array("files"));
  return manifest;
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  json body = body_of(manifest);
  body["checksum"] = checksum_of(body);
  return body.dump(1) + "\n";
}

Result<Manifest> parse_manifest(std::string_view text, std::string_view file) try {
  const auto damaged = [&](std::string_view why) {
    return Error{ErrorCode::corrupt, fmt::format("{}: {}", file, why)};
  };
  auto parsed = parse_json(text, file);
  if (!parsed.ok()) return Error{ErrorCode::corrupt, parsed.error().text};
  Manifest manifest = read_manifest(*parsed);
  json body = std::move(*parsed);
  const json checksum = body["checksum"];
  body.erase("checksum");
  if (checksum != checksum_of(body)) return damaged("its checksum does not match");
  if (manifest_text(manifest) != text) return damaged("not as it was written");
  return manifest;
} catch (const JsonRefused& refused) {
  return Error{ErrorCode::corrupt, fmt::format("{}: {}", file, refused.text)};
}

}  // namespace troupe
