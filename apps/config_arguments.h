/// The arguments that every command with a configuration takes.
#pragma once

#include <cstdint>
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

enum class ConfigNeed : std::uint8_t { required, optional };
/// Adds CONF and --set. Where CONF is optional and was not given, `file` is empty.
std::shared_ptr<ConfigArguments> add_config_arguments(CLI::App& command,
                                                      ConfigNeed need = ConfigNeed::required);

/// Which models a command can do something with.
enum class ModelNeed : std::uint8_t { trained, any };
/// Loads the configuration and prints its warnings.
Result<LoadedConfig> load(const ConfigArguments& arguments,
                          const Console& console,
                          ModelNeed need = ModelNeed::trained);

}  // namespace troupe
