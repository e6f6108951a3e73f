#include "apps/run_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "apps/config_builder.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t largest_file = 4U << 20U;

Result<std::string> read_small_file(const std::string& path) {
  std::error_code failure;
  const fs::file_status status = fs::status(path, failure);
  if (!fs::exists(status))
    return Error{ErrorCode::invalid_input, fmt::format("{}: there is no such file", path)};
  if (!fs::is_regular_file(status))
    return Error{ErrorCode::invalid_input, fmt::format("{}: this is not a file", path)};
  if (fs::file_size(path, failure) > largest_file)
    return Error{ErrorCode::invalid_input,
                 fmt::format("{}: a configuration has at most 4 MiB", path)};
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file && !file.eof()) return Error{ErrorCode::io, fmt::format("{}: cannot be read", path)};
  return text;
}

/// Puts the keys of the [model] table of model.file under those that are written here.
void merge_model_file(ConfigNode& root,
                      const std::string& name,
                      std::vector<ConfigProblem>& problems) {
  ConfigNode* model = root.find("model");
  ConfigNode* link = model != nullptr && model->is_table() ? model->find("file") : nullptr;
  if (link == nullptr || link->kind != ConfigNode::Kind::text || link->text.empty()) return;
  const fs::path path = fs::path(link->text).is_absolute()
                            ? fs::path(link->text)
                            : fs::path(name).parent_path() / link->text;
  const auto text = read_small_file(path.lexically_normal().string());
  if (!text) {
    problems.push_back({link->at, "model.file: " + text.error().text});
    return;
  }
  const std::size_t before = problems.size();
  ConfigNode other = parse_config_tree(*text, path.lexically_normal().string(), problems);
  if (problems.size() != before) return;
  for (ConfigNode::Entry& entry : other.entries) {
    if (entry.key != "model" || !entry.value.is_table()) {
      problems.push_back(
          {entry.key_at, fmt::format("\"{}\" in a model file; it holds only [model]", entry.key)});
      continue;
    }
    for (ConfigNode::Entry& inner : entry.value.entries) {
      if (inner.key == "file")
        problems.push_back(
            {inner.key_at, "model.file in a model file; it cannot start from another"});
      else if (model->find(inner.key) == nullptr)
        model->entries.push_back(std::move(inner));
    }
  }
}

void remove_entry(ConfigNode& table, std::string_view key) {
  std::erase_if(table.entries, [key](const ConfigNode::Entry& entry) { return entry.key == key; });
}

}  // namespace

std::string to_text(const std::vector<ConfigProblem>& problems) {
  std::string out;
  for (const ConfigProblem& problem : problems) out += to_string(problem) + "\n";
  return out;
}

ConfigOutcome parse_config(std::string_view text,
                           const std::string& name,
                           const ConfigOptions& options) {
  ConfigOutcome outcome;
  ConfigNode root = parse_config_tree(text, name, outcome.problems);
  if (!outcome.problems.empty()) return outcome;  // without a tree the rest would only be noise
  for (const std::string& assignment : options.overrides)
    apply_override(root, assignment, outcome.problems);
  if (options.look_at_files) merge_model_file(root, name, outcome.problems);
  check_against_table(root, outcome.problems);
  ConfigBuilder builder(root, name, options, outcome.problems);
  LoadedConfig loaded;
  loaded.spec = builder.build();
  if (outcome.problems.empty())
    if (const Status holds = validate(loaded.spec.model); !holds)
      outcome.problems.push_back({root.find("model")->at, holds.error().text});
  std::sort(outcome.problems.begin(), outcome.problems.end());
  outcome.problems.erase(std::unique(outcome.problems.begin(), outcome.problems.end()),
                         outcome.problems.end());
  if (!outcome.problems.empty()) return outcome;
  remove_entry(*root.find("model"), "file");
  loaded.resolved = "# Every setting of this run, with its defaults.\n" + to_toml(root);
  loaded.warnings = builder.warnings();
  outcome.loaded = std::move(loaded);
  return outcome;
}

std::optional<std::string> config_of_run(const std::string& checkpoint) {
  std::error_code failure;
  const fs::path run = fs::absolute(checkpoint, failure).lexically_normal() / ".." / "..";
  const fs::path config = (run / "config.toml").lexically_normal();
  if (!fs::is_regular_file(config, failure)) return std::nullopt;
  return config.string();
}

Result<LoadedConfig> load_config(const std::string& path, const ConfigOptions& options) {
  const auto text = read_small_file(path);
  if (!text) return text.error();
  ConfigOutcome outcome = parse_config(*text, path, options);
  if (!outcome.loaded) return Error{ErrorCode::invalid_input, to_text(outcome.problems)};
  return std::move(*outcome.loaded);
}

}  // namespace troupe
