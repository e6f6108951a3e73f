#include "apps/config_arguments.h"

#include <CLI/CLI.hpp>
#include <ostream>

namespace troupe {

std::shared_ptr<ConfigArguments> add_config_arguments(CLI::App& command, ConfigNeed need) {
  auto arguments = std::make_shared<ConfigArguments>();
  command.add_option("CONF", arguments->file, "Configuration file (TOML)")
      ->required(need == ConfigNeed::required);
  command
      .add_option("--set", arguments->overrides,
                  "Override a key, as in --set run.steps=100; may repeat")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
  return arguments;
}

Result<LoadedConfig> load(const ConfigArguments& arguments,
                          const Console& console,
                          ModelNeed need) {
  ConfigOptions options;
  options.any_model = need == ModelNeed::any;
  options.overrides = arguments.overrides;
  auto loaded = load_config(arguments.file, options);
  if (loaded)
    for (const std::string& warning : loaded->warnings)
      console.err << "warning: " << warning << '\n';
  return loaded;
}

}  // namespace troupe
