#include "apps/architecture_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <type_traits>

#include "actors/checkpoint/hf_architecture.h"
#include "actors/checkpoint/hf_config.h"
#include "apps/config_schema.h"
#include "apps/small_file.h"
#include "planner/architecture_fields.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

/// As --set and TOML give it.
template <class Field>
ConfigNode node_of(const Field& field, const Position& at) {
  ConfigNode node;
  node.at = at;
  if constexpr (std::is_enum_v<Field>) {
    node.kind = ConfigNode::Kind::text;
    node.text = name_of(field);
  } else if constexpr (std::is_same_v<Field, std::string>) {
    node.kind = ConfigNode::Kind::text;
    node.text = field;
  } else if constexpr (std::is_same_v<Field, bool>) {
    node.kind = ConfigNode::Kind::boolean;
    node.boolean = field;
  } else if constexpr (std::is_same_v<Field, double>) {
    node.kind = ConfigNode::Kind::number;
    node.number = field;
  } else {
    node.kind = ConfigNode::Kind::integer;
    node.integer = static_cast<std::int64_t>(field);
    node.number = static_cast<double>(field);
  }
  return node;
}

/// Takes what the table says; what it does not say stays.
template <class Field>
void take(const ConfigReader& model, const char* name, Field& field) {
  if (!model.has(name)) return;
  if constexpr (std::is_enum_v<Field>) {
    const auto names = names_of(field);
    const auto found = std::find(names.begin(), names.end(), model.text(name));
    if (found != names.end()) field = static_cast<Field>(found - names.begin());
  } else if constexpr (std::is_same_v<Field, std::string>) {
    field = model.text(name);
  } else if constexpr (std::is_same_v<Field, bool>) {
    field = model.boolean(name);
  } else if constexpr (std::is_same_v<Field, double>) {
    field = model.number(name);
  } else {
    field = static_cast<Field>(model.integer(name));
  }
}

/// Without keys whose absence says the same in every family.
bool is_left_out(const Architecture& model, std::string_view name) {
  const auto among = [name](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (!model.attention.is_latent() &&
      among({"q_rank", "kv_rank", "nope_width", "rope_width", "value_width"}))
    return true;
  if (!model.has_experts() &&
      among({"experts", "top_k", "expert_ffn_width", "shared_experts", "shared_ffn_width",
             "shared_gate", "first_dense_blocks", "moe_every", "router_bias"}))
    return true;
  return (name == "ffn_width" && model.ffn_width == 0) ||
         (name == "position_rows" && model.position_rows == 0) ||
         (name == "rotary_share" && model.rotary_share == 1.0) ||
         (name == "extra_parameters" && model.extra_parameters == 0);
}

ConfigNode table_of(const Architecture& model, const Position& at) {
  ConfigNode table;
  table.at = at;
  for_each_field(model, [&](const char* name, const auto& field) {
    if (!is_left_out(model, name)) table.add(name, at) = node_of(field, at);
  });
  return table;
}

/// What the family has where nothing else is written.
Architecture usual_architecture(const ConfigReader& model, std::uint32_t context) {
  const bool gpt2 = model.text("family") == "gpt2";
  ModelSpec spec;
  spec.family = gpt2 ? ModelFamily::gpt2 : ModelFamily::llama;
  spec.width = model.integer32("width");
  spec.heads = std::max(1u, model.integer32("heads"));
  spec.kv_heads = spec.heads;
  spec.ffn_width = gpt2 ? 4 * spec.width : (8 * spec.width + 95) / 96 * 32;
  spec.context = context;
  return architecture_of(spec);
}

/// A model in a file, as the [model] table of a configuration.
struct ModelInFile {
  ConfigNode table;
  std::string untrainable;
};

/// Settings of config.json that count for training but not for planning.
void add_trained_settings(ModelInFile& model, const std::string& text, const Position& at) {
  const std::string family = model.table.find("family")->text;
  if (family != "gpt2" && family != "llama") return;  // says enough by itself
  const auto trained = model_from_hf_config(text, at.file);
  if (!trained) {
    model.untrainable = trained.error().text;
    return;
  }
  model.table.add("norm_epsilon", at) = node_of(trained->norm_epsilon, at);
  if (family == "llama") model.table.add("rope_theta", at) = node_of(trained->rope_theta, at);
  model.table.add("dropout", at) = node_of(trained->dropout, at);
}

std::optional<ModelInFile> read_hf_file(const std::string& path,
                                        const Position& blame,
                                        std::vector<ConfigProblem>& problems) {
  const Position at{path, 0, 0};
  const auto text = read_small_file(path);
  const auto model = text ? architecture_from_hf_config(*text, path) : text.error();
  if (!model) {
    problems.push_back({blame, model.error().text});
    return std::nullopt;
  }
  ModelInFile out{table_of(*model, at), {}};
  add_trained_settings(out, *text, at);
  return out;
}

/// The [model] table of the text of a model file; it is alone there.
std::optional<ConfigNode> model_table(std::string_view text,
                                      const std::string& name,
                                      std::vector<ConfigProblem>& problems) {
  const std::size_t before = problems.size();
  ConfigNode root = parse_config_tree(text, name, problems);
  if (problems.size() != before) return std::nullopt;
  std::optional<ConfigNode> table;
  for (ConfigNode::Entry& entry : root.entries)
    if (entry.key != "model" || !entry.value.is_table())
      problems.push_back(
          {entry.key_at, fmt::format("\"{}\" in a model file; it holds only [model]", entry.key)});
    else
      table = std::move(entry.value);
  if (table && table->find("file") != nullptr)
    for (const ConfigNode::Entry& entry : table->entries)
      if (entry.key == "file")
        problems.push_back(
            {entry.key_at, "model.file in a model file; it cannot start from another"});
  if (table) std::erase_if(table->entries, [](const auto& entry) { return entry.key == "file"; });
  if (!table && problems.size() == before)
    problems.push_back({root.at, "there is no table [model]; a model file holds one"});
  return table;
}

bool is_hugging_face(const fs::path& path) {
  std::error_code failure;
  return path.extension() == ".json" || fs::is_directory(path, failure);
}

std::optional<ModelInFile> read_model_file(const fs::path& path,
                                           const Position& blame,
                                           std::vector<ConfigProblem>& problems) {
  std::error_code failure;
  if (is_hugging_face(path))
    return read_hf_file((fs::is_directory(path, failure) ? path / "config.json" : path).string(),
                        blame, problems);
  const auto text = read_small_file(path.string());
  if (!text) {
    problems.push_back({blame, text.error().text});
    return std::nullopt;
  }
  auto table = model_table(*text, path.string(), problems);
  if (!table) return std::nullopt;
  return ModelInFile{std::move(*table), {}};
}

/// Model files with a name like that of `path`, in its folder or in models/ beside the
/// configuration; as they would be written in place of `written`.
std::string similar_files(const fs::path& folder, const fs::path& written) {
  const fs::path base = written.is_absolute() ? fs::path() : folder;
  for (const fs::path& place : {written.parent_path(), fs::path("models")}) {
    std::error_code failure;
    std::map<std::string, std::string> files;  // by what stands before the extension
    for (const auto& entry : fs::directory_iterator(base / place / ".", failure))
      if (entry.path().extension() == ".toml" || entry.path().extension() == ".json")
        files[entry.path().stem().string()] = entry.path().filename().string();
      else if (fs::exists(entry.path() / "config.json", failure))
        files[entry.path().filename().string()] = entry.path().filename().string();
    std::vector<std::string> names;
    names.reserve(files.size());
    for (const auto& [stem, file] : files) names.push_back(stem);
    std::string out;
    for (const std::string& name : likely_names(written.filename().stem().string(), names))
      out += (out.empty() ? "\"" : ", \"") + (place / files[name]).string() + "\"";
    if (!out.empty()) return "; there is " + out;
  }
  return "";
}

/// Keys that the file would have given are not missing.
void excuse_missing_keys(ConfigNode& model) {
  for (const ConfigKey& key : config_keys())
    if (key.table == "model" && key.presence == ConfigPresence::required &&
        model.find(key.name) == nullptr)
      model.add(std::string(key.name), model.at).bad = true;
}

std::string lines_of(const std::vector<ConfigProblem>& problems) {
  std::string out;
  for (const ConfigProblem& problem : problems) out += to_string(problem) + "\n";
  return out;
}

/// From the table of a file that stands alone.
std::optional<Architecture> checked_architecture(ConfigNode table,
                                                 std::vector<ConfigProblem>& problems) {
  const std::size_t before = problems.size();
  check_one_table("model", table, problems);
  const ConfigReader model(&table);
  if (!model.has("context") && table.find("context") == nullptr)
    problems.push_back({table.at, "model.context is missing; add for example context = 2048"});
  if (problems.size() != before) return std::nullopt;
  const Architecture out = read_architecture(model, 0);
  if (const Status holds = validate(out); !holds.ok())
    problems.push_back({place_of_refusal(model, holds.error().text), holds.error().text});
  if (problems.size() != before) return std::nullopt;
  return out;
}

}  // namespace

std::string architecture_text(const Architecture& model) {
  ConfigNode root;
  root.add("model", {}) = table_of(model, {});
  return to_toml(root).substr(1);  // no empty line at the top
}

std::optional<Architecture> parse_architecture(std::string_view text,
                                               const std::string& name,
                                               std::vector<ConfigProblem>& problems) {
  const std::size_t before = problems.size();
  auto table = model_table(text, name, problems);
  if (!table) return std::nullopt;
  auto model = checked_architecture(std::move(*table), problems);
  std::sort(problems.begin(), problems.end());
  if (problems.size() != before) return std::nullopt;
  return model;
}

Result<Architecture> load_architecture(const std::string& path) {
  std::vector<ConfigProblem> problems;
  auto file = read_model_file(fs::path(path).lexically_normal(), {path, 0, 0}, problems);
  std::optional<Architecture> model;
  if (file) model = checked_architecture(std::move(file->table), problems);
  std::sort(problems.begin(), problems.end());
  if (model && problems.empty()) return *model;
  // What is wrong with the file as a whole names it already.
  if (problems.size() == 1 && problems.front().text.starts_with(path + ": "))
    return Error{ErrorCode::invalid_input, problems.front().text};
  return Error{ErrorCode::invalid_input, lines_of(problems)};
}

Architecture read_architecture(const ConfigReader& model, std::uint32_t context) {
  Architecture out =
      usual_architecture(model, model.has("context") ? model.integer32("context") : context);
  const bool dense_width_written = model.has("ffn_width");
  for_each_field(out, [&](const char* name, auto& field) { take(model, name, field); });
  if (!model.has("kv_heads")) out.attention.kv_heads = out.attention.heads;
  if (!model.has("head_width") && out.attention.is_latent())
    out.attention.head_width = out.attention.latent.nope_width + out.attention.latent.rope_width;
  if (!model.has("position_rows"))
    out.position_rows = out.position == PositionKind::learned ? out.context : 0;
  const bool experts_everywhere =
      out.has_experts() && out.moe.first_dense_blocks == 0 && out.moe.moe_every == 1;
  if (experts_everywhere && !dense_width_written) out.ffn_width = 0;
  return out;
}

Position place_of_refusal(const ConfigReader& model, std::string_view refusal) {
  constexpr std::string_view start = "model.";
  if (!refusal.starts_with(start)) return model.at();
  refusal.remove_prefix(start.size());
  return model.at(refusal.substr(0, refusal.find(' ')));
}

std::string merge_model_file(ConfigNode& root,
                             const std::string& name,
                             std::vector<ConfigProblem>& problems) {
  ConfigNode* model = root.find("model");
  const ConfigNode* link = model != nullptr && model->is_table() ? model->find("file") : nullptr;
  if (link == nullptr || link->kind != ConfigNode::Kind::text || link->text.empty()) return {};
  const fs::path folder = fs::path(name).parent_path();
  const fs::path written = link->text;
  const fs::path path = (folder / written).lexically_normal();
  const Position at = link->at;
  std::error_code failure;
  std::optional<ModelInFile> file;
  if (fs::exists(path, failure)) {
    file = read_model_file(path, at, problems);
  } else {
    problems.push_back({at, fmt::format("model.file: {}: there is no such file{}", path.string(),
                                        similar_files(folder, written))});
  }
  if (!file) {
    excuse_missing_keys(*model);
    return {};
  }
  for (ConfigNode::Entry& entry : file->table.entries)
    if (model->find(entry.key) == nullptr) model->entries.push_back(std::move(entry));
  return file->untrainable;
}

}  // namespace troupe
