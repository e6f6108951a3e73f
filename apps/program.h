/// The `troupe` program: subcommands, their help, exit codes and error lines.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "planner/result.h"

namespace CLI {
class App;
}

namespace troupe {

/// What scripts may rely on.
enum class ExitCode : int { success = 0, failure = 1, usage = 2, does_not_fit = 3 };

/// Where a command writes.
struct Console {
  std::ostream& out;
  std::ostream& err;
  bool terminal = false;  ///< `err` is a terminal: progress may overwrite its line
};

/// Runs the program with the arguments after its name; returns the exit code.
int run_program(const std::vector<std::string>& arguments, const Console& console);

/// Prints "error: ..." for each line of the text; returns the error's exit code.
ExitCode report_error(const Error& error, const Console& console);

/// What a command does once its arguments are parsed.
using CommandBody = std::function<ExitCode(const Console&)>;
/// Set by the chosen subcommand's callback.
struct ChosenCommand {
  CommandBody body;
};

// One function per subcommand, each in a file of its own.
void add_train(CLI::App& app, ChosenCommand& chosen);
void add_node(CLI::App& app, ChosenCommand& chosen);
void add_plan(CLI::App& app, ChosenCommand& chosen);
void add_profile(CLI::App& app, ChosenCommand& chosen);
void add_estimate(CLI::App& app, ChosenCommand& chosen);
void add_simulate(CLI::App& app, ChosenCommand& chosen);
void add_check(CLI::App& app, ChosenCommand& chosen);
void add_generate(CLI::App& app, ChosenCommand& chosen);
void add_checkpoint(CLI::App& app, ChosenCommand& chosen);
void add_data(CLI::App& app, ChosenCommand& chosen);
void add_explain(CLI::App& app, ChosenCommand& chosen);
void add_version(CLI::App& app, ChosenCommand& chosen);

}  // namespace troupe
