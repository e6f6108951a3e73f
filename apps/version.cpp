#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <ostream>

#include "actors/launch.h"
#include "actors/messages.h"
#include "apps/program.h"

namespace troupe {

void add_version(CLI::App& app, ChosenCommand& chosen) {
  CLI::App* command = app.add_subcommand("version", "Say which program this is");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "As JSON");
  command->footer("Examples:\n  troupe version\n  troupe version --json");
  command->callback([json, &chosen] {
    chosen.body = [json](const Console& console) {
      const std::string build = build_text();
      if (*json)
        console.out << nlohmann::json{{"program", "troupe"},
                                      {"version", build.substr(0, build.find(' '))},
                                      {"protocol", protocol_version},
                                      {"compiler", __VERSION__}}
                           .dump()
                    << '\n';
      else
        console.out << "troupe " << build << '\n';
      return ExitCode::success;
    };
  });
}

}  // namespace troupe
