#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <ostream>

#include "apps/config_schema.h"
#include "apps/program.h"

namespace troupe {
namespace {

ExitCode explain_key(const std::string& key, const Console& console) {
  if (key.empty()) {
    console.out << explain_all();
    return ExitCode::success;
  }
  if (const auto page = explain(key)) {
    console.out << *page;
    return ExitCode::success;
  }
  // A key of a table that there is: as the parser answers it.
  const auto dot = key.rfind('.');
  const auto& tables = config_tables();
  if (dot != std::string::npos &&
      std::any_of(tables.begin(), tables.end(),
                  [&](const ConfigTable& table) { return table.name == key.substr(0, dot); }))
    return report_error({ErrorCode::invalid_input,
                         fmt::format("there is no key \"{}\"; {}", key,
                                     suggestion_for(key.substr(0, dot), key.substr(dot + 1)))},
                        console);
  std::vector<std::string> known;
  for (const ConfigKey& entry : config_keys()) {
    known.push_back(path_of(entry));
    known.emplace_back(entry.name);
  }
  for (const ConfigTable& table : tables) known.emplace_back(table.name);
  return report_error({ErrorCode::invalid_input, fmt::format("there is no key \"{}\"; nearest: {}",
                                                             key, nearest_of_all(key, known))},
                      console);
}

}  // namespace

void add_explain(CLI::App& app, ChosenCommand& chosen) {
  CLI::App* command = app.add_subcommand("explain", "Say what a configuration key means");
  const auto key = std::make_shared<std::string>();
  command->add_option("KEY", *key, "A key or a table; absent: all of them");
  const auto markdown = std::make_shared<bool>(false);
  command->add_flag("--markdown", *markdown, "All keys as Markdown: the text of conf/keys.md");
  command->footer(
      "Examples:\n"
      "  troupe explain                 all keys, one line each\n"
      "  troupe explain plan            the keys of a table\n"
      "  troupe explain run.steps       one key");
  command->callback([=, &chosen] {
    chosen.body = [=](const Console& console) {
      if (!*markdown) return explain_key(*key, console);
      console.out << keys_markdown();
      return ExitCode::success;
    };
  });
}

}  // namespace troupe
