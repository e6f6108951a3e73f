#include "apps/run_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "apps/architecture_file.h"
#include "apps/config_builder.h"
#include "apps/small_file.h"
#include "planner/recompute_choice.h"
#include "planner/trainable.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

void remove_entry(ConfigNode& table, std::string_view key) {
  std::erase_if(table.entries, [key](const ConfigNode::Entry& entry) { return entry.key == key; });
}

std::string resolved_text(const ConfigNode& root) {
  return "# Every setting of this run, with its defaults.\n" + to_toml(root);
}

/// What nobody wrote of the step's shape and schedule.
OpenChoices open_choices(const ConfigNode& root, const RunSpec& spec) {
  OpenChoices open;
  if (!spec.plan.pinned.empty()) return open;
  const auto written = [&](std::string_view table, std::string_view key) {
    const ConfigNode* of = root.find(table);
    const ConfigNode* node = of == nullptr ? nullptr : of->find(key);
    return node != nullptr && !node->is_default;
  };
  open.microbatches =
      !written("training", "microbatches") && !written("training", "microbatch_size");
  open.schedule = !written("plan", "schedule") && !written("plan", "chunks");
  open.recompute = (open.microbatches || open.schedule) && !written("plan", "recompute");
  return open;
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
  std::string untrainable;
  if (options.look_at_files) untrainable = merge_model_file(root, name, outcome.problems);
  check_against_table(root, outcome.problems);
  ConfigBuilder builder(root, name, options, outcome.problems);
  LoadedConfig loaded;
  loaded.spec = builder.build();
  loaded.model = builder.architecture();
  if (!untrainable.empty()) {
    loaded.untrained = "this model can be planned but not trained: " + untrainable;
    if (!options.any_model)
      outcome.problems.push_back({root.find("model")->find("file")->at, loaded.untrained});
  } else if (options.any_model) {
    if (const auto trained = trainable(loaded.model); !trained)
      loaded.untrained = trained.error().text;
  }
  std::sort(outcome.problems.begin(), outcome.problems.end());
  outcome.problems.erase(std::unique(outcome.problems.begin(), outcome.problems.end()),
                         outcome.problems.end());
  if (!outcome.problems.empty()) return outcome;
  remove_entry(*root.find("model"), "file");
  loaded.resolved = resolved_text(root);
  loaded.warnings = builder.warnings();
  loaded.open = open_choices(root, loaded.spec);
  outcome.loaded = std::move(loaded);
  return outcome;
}

std::string with_choices(const std::string& resolved, const RunSpec& spec) {
  std::vector<ConfigProblem> problems;
  ConfigNode root = parse_config_tree(resolved, "config.toml", problems);
  EXPECTS(problems.empty());
  ConfigNode* microbatches = root.find("training")->find("microbatches");
  if (microbatches != nullptr && microbatches->text == "auto") {
    microbatches->kind = ConfigNode::Kind::integer;
    microbatches->integer = spec.shape.microbatch_count;
  }
  ConfigNode& plan = *root.find("plan");
  if (plan.find("schedule")->text == "auto") {
    plan.find("schedule")->text = to_string(spec.plan.schedule);
    plan.find("chunks")->integer = spec.plan.chunks;
  }
  // Stages that differ stay open: the same choice is made again.
  const bool alike = spec.plan.pinned.empty()
                         ? !spec.plan.choose_recompute
                         : common_policy(spec.plan.pinned, spec.model).has_value();
  if (plan.find("recompute")->text == "auto" && alike)
    plan.find("recompute")->text = to_string(spec.plan.recompute);
  return resolved_text(root);
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
