/// Models in files: the [model] table of a TOML file (conf/models/), or config.json as Hugging Face
/// writes it. Both become the [model] table of a configuration, which is read into an Architecture.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/config_check.h"
#include "apps/config_tree.h"
#include "planner/architecture.h"

namespace troupe {

/// The text of a model file: a table [model] with every field that the model has. Reads back to an
/// equal Architecture.
std::string architecture_text(const Architecture& model);

/// Reads the text of a model file. `name` is the file's name in positions. No value where there are
/// problems: keys that are unknown, missing, of a wrong type or out of range, and what `validate`
/// refuses.
std::optional<Architecture> parse_architecture(std::string_view text,
                                               const std::string& name,
                                               std::vector<ConfigProblem>& problems);

/// Reads a model file (.toml), a config.json or a folder that holds one. invalid_input: one line
/// per problem, each "file:line:column: reason".
Result<Architecture> load_architecture(const std::string& path);

/// The model that a checked [model] table describes. What is not written is as usual for the
/// family: gpt2 as GPT-2, every other as Llama. `context`: where the table does not give one.
Architecture read_architecture(const ConfigReader& model, std::uint32_t context);

/// Where a refusal that begins with "model.KEY " belongs: that key's place, else the table's.
Position place_of_refusal(const ConfigReader& model, std::string_view refusal);

/// Puts the keys of the file that [model] names as `file` under those that are written there.
/// `name`: the configuration's file, which the path is relative to. Returns why the file's model
/// cannot be trained, where that is not in its Architecture (a setting of config.json that Troupe
/// does not compute); else an empty text.
std::string merge_model_file(ConfigNode& root,
                             const std::string& name,
                             std::vector<ConfigProblem>& problems);

}  // namespace troupe
