#include "apps/program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ostream>
#include <sstream>

#include "apps/config_schema.h"

namespace troupe {
namespace {

std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands({})) names.push_back(sub->get_name());
  return names;
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// "--set run.steps=...": the configuration key at the top of a table that is called nearly like
/// the flag, if it is nearer than `than` edits.
std::string setting_like(const std::string& flag, std::size_t than) {
  std::string best;
  for (const ConfigKey& key : config_keys()) {
    if (key.table.find('.') != std::string_view::npos) continue;
    const std::size_t edits = edit_distance(flag.substr(2), key.name);
    if (edits > 2 || edits >= than) continue;
    than = edits;
    best = "--set " + path_of(key) + "=...";
  }
  return best;
}

/// What to write in place of a flag that a command lacks.
std::string in_place_of(const std::string& flag, const std::vector<std::string>& known) {
  const auto near = nearest(flag, known);
  if (std::find(known.begin(), known.end(), "--set") != known.end()) {
    const std::string setting = setting_like(flag, near ? edit_distance(flag, *near) : flag.size());
    if (!setting.empty()) return "did you mean " + setting + "?";
  }
  return near ? "did you mean " + *near + "?" : "it has " + joined(known);
}

/// The commands as far as they were understood: "troupe checkpoint ls".
std::string command_path(const CLI::App& root) {
  std::string path = root.get_name();
  for (const CLI::App* sub : root.get_subcommands()) return path + " " + command_path(*sub);
  return path;
}

/// The first thing that no (sub)command knows, with the nearest one that it does know.
std::string unknown_word(CLI::App& root, const std::vector<std::string>& arguments) {
  CLI::App* app = &root;
  std::string path = "troupe";
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    if (argument.rfind("--", 0) == 0) {
      const std::string flag = argument.substr(0, argument.find('='));
      const auto known = flags_of(*app);
      if (std::find(known.begin(), known.end(), flag) == known.end())
        return fmt::format("{} has no flag {}; {}", path, flag, in_place_of(flag, known));
      continue;
    }
    const auto names = subcommand_names(*app);
    if (names.empty() || argument.rfind('-', 0) == 0) continue;
    const auto found = std::find(names.begin(), names.end(), argument);
    if (found == names.end()) {
      const auto near = nearest(argument, names);
      return fmt::format("{} has no command \"{}\"; {}", path, argument,
                         near ? fmt::format("did you mean {}?", *near)
                              : fmt::format("there are {}", joined(names)));
    }
    app = app->get_subcommand(argument);
    path += " " + argument;
  }
  return "";
}

void setup(CLI::App& app, ChosenCommand& chosen) {
  app.name("troupe");
  app.require_subcommand(1);
  app.set_help_flag("-h,--help", "Say what this is and how it is called");
  app.footer(
      "Examples:\n"
      "  troupe train conf/demo.toml                      train, leaving everything in runs/demo\n"
      "  troupe train conf/demo.toml --set run.steps=100  with one setting changed\n"
      "  troupe plan conf/demo.toml --explain             what would run where, and why\n"
      "  troupe simulate conf/demo.toml --text            who is busy when, who waits for what\n"
      "  troupe explain run.steps                         what a configuration key means\n"
      "\nExit codes: 0 success, 1 failure, 2 wrong usage or configuration, 3 does not fit, 130 "
      "stopped by a second Ctrl-C.");
  add_train(app, chosen);
  add_node(app, chosen);
  add_plan(app, chosen);
  add_profile(app, chosen);
  add_estimate(app, chosen);
  add_simulate(app, chosen);
  add_check(app, chosen);
  add_generate(app, chosen);
  add_checkpoint(app, chosen);
  add_data(app, chosen);
  add_explain(app, chosen);
  add_version(app, chosen);
}

}  // namespace

ExitCode report_error(const Error& error, const Console& console) {
  std::stringstream lines(error.text);
  for (std::string line; std::getline(lines, line);) console.err << "error: " << line << '\n';
  if (error.text.empty()) console.err << "error: " << to_string(error.code) << '\n';
  switch (error.code) {
    case ErrorCode::invalid_input: return ExitCode::usage;
    case ErrorCode::does_not_fit: return ExitCode::does_not_fit;
    default: return ExitCode::failure;
  }
}

int run_program(const std::vector<std::string>& arguments, const Console& console) {
  CLI::App app("Trains transformers on machines whose devices differ in speed and memory.");
  ChosenCommand chosen;
  setup(app, chosen);
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    CLI::App* asked = &app;
    std::string before;  // how the command is called
    for (bool deeper = true; deeper;) {
      deeper = false;
      for (CLI::App* sub : asked->get_subcommands())
        if (sub->parsed()) {
          before += (before.empty() ? "" : " ") + asked->get_name();
          asked = sub;
          deeper = true;
          break;
        }
    }
    console.out << asked->help(before);
    return static_cast<int>(ExitCode::success);
  } catch (const CLI::ParseError& error) {
    const std::string unknown = unknown_word(app, arguments);
    console.err << "error: " << (unknown.empty() ? error.what() : unknown) << '\n';
    if (unknown.empty())
      console.err << "error: " << command_path(app) << " --help shows how it is called\n";
    return static_cast<int>(ExitCode::usage);
  }
  EXPECTS(chosen.body != nullptr);  // a subcommand is required, and each sets it
  const ExitCode code = chosen.body(console);
  console.out.flush();
  if (!console.out && code == ExitCode::success) {
    console.err << "error: the output cannot be written; the disk may be full\n";
    return static_cast<int>(ExitCode::failure);
  }
  return static_cast<int>(code);
}

}  // namespace troupe
