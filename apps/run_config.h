/// Configuration files: TOML text to checked values, with every problem named by its place.
/// Nothing is opened or created but the files that the configuration names, which are only looked
/// at.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/run_spec.h"
#include "apps/config_tree.h"
#include "planner/architecture.h"
#include "planner/step_choices.h"

namespace troupe {

struct ConfigOptions {
  std::vector<std::string> overrides;  ///< "a.b=c", applied in order
  bool look_at_files = true;           ///< false: files and folders count as existing, none is read
  bool any_model = false;  ///< a model that can be planned but not trained is no problem
};

/// A configuration that holds.
struct LoadedConfig {
  /// Where `untrained` says something, spec.model only stands in for `model`.
  RunSpec spec;
  Architecture model;                 ///< what [model] describes, in full
  std::string untrained;              ///< why it cannot be trained; empty: it can
  std::string resolved;               ///< TOML with every key; reads back to the same spec
  std::vector<std::string> warnings;  ///< settings without effect
  OpenChoices open;                   ///< what the file leaves to defaults; nothing where pinned
};

struct ConfigOutcome {
  std::optional<LoadedConfig> loaded;   ///< absent when there are problems
  std::vector<ConfigProblem> problems;  ///< sorted by place
};

/// Checks configuration text. `name` is the file's path: for positions and relative paths.
ConfigOutcome parse_config(std::string_view text,
                           const std::string& name,
                           const ConfigOptions& options = {});

/// Reads and checks a file. The error (invalid_input, or io when the file cannot be read) has one
/// line per problem.
Result<LoadedConfig> load_config(const std::string& path, const ConfigOptions& options = {});

/// A resolved configuration with the numbers of `spec` where it leaves microbatches or the schedule
/// to the planner.
std::string with_choices(const std::string& resolved, const RunSpec& spec);

/// The resolved configuration of the run that a checkpoint lies in; none where it lies in no run.
std::optional<std::string> config_of_run(const std::string& checkpoint);

/// Problems as text, one a line.
std::string to_text(const std::vector<ConfigProblem>& problems);

}  // namespace troupe
