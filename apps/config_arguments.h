/// The arguments that every command with a configuration takes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/program.h"
#include "apps/run_config.h"

namespace troupe {

struct ConfigArguments {
  std::string file;
  std::vector<std::string> overrides;
};

/// Adds CONF and --set.
std::shared_ptr<ConfigArguments> add_config_arguments(CLI::App& command);

/// Loads the configuration and prints its warnings.
Result<LoadedConfig> load(const ConfigArguments& arguments, const Console& console);

}  // namespace troupe
