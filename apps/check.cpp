#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <ostream>

#include "apps/config_arguments.h"
#include "planner/counted.h"

namespace troupe {
namespace {

ExitCode check(const ConfigArguments& arguments, const Console& console) {
  const auto loaded = load(arguments, console);
  if (!loaded) return report_error(loaded.error(), console);
  const RunSpec& spec = loaded->spec;
  const std::string microbatches =
      spec.plan.choose_microbatches ? std::string("as many microbatches as `troupe plan` chooses")
                                    : counted(spec.shape.microbatch_count, "microbatch");
  console.out << fmt::format(
      "{}: holds\n"
      "  model    {} parameters in {} layers\n"
      "  step     {}: {} of {} in {}\n"
      "  cluster  {} in {}\n",
      arguments.file, parameter_count(spec.model), layer_count(spec.model),
      counted(std::uint64_t{spec.shape.batch_size} * spec.shape.sequence_length, "token"),
      counted(spec.shape.batch_size, "sequence"), spec.shape.sequence_length, microbatches,
      counted(spec.cluster.devices.size(), "device"), counted(spec.cluster.nodes.size(), "node"));
  return ExitCode::success;
}

}  // namespace

void add_check(CLI::App& app, ChosenCommand& chosen) {
  CLI::App* command = app.add_subcommand("check", "Read a configuration and report every problem");
  const auto arguments = add_config_arguments(*command);
  command->footer(
      "Examples:\n"
      "  troupe check conf/demo.toml\n"
      "  troupe check conf/cpu_only.toml --set training.compute=bf16");
  command->callback([arguments, &chosen] {
    chosen.body = [arguments](const Console& console) { return check(*arguments, console); };
  });
}

}  // namespace troupe
