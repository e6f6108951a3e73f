#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <ostream>

#include "actors/launch.h"
#include "apps/config_arguments.h"
#include "apps/plan_tables.h"

namespace troupe {
namespace {

/// Where the times come from that the plan stands on.
std::string sources_text(const ClusterSpec& cluster) {
  std::string measured, catalogued;
  for (const DeviceSpec& device : cluster.devices) {
    std::string& names = device.measured.empty() ? catalogued : measured;
    names += (names.empty() ? "" : ", ") + device.name;
  }
  std::string text;
  if (!measured.empty())
    text += fmt::format("measured just now, an embedding, a block and a head: {}\n", measured);
  if (!catalogued.empty())
    text += fmt::format("from the catalogue's rates (conf/devices.toml): {}\n", catalogued);
  return text;
}

ExitCode plan(const ConfigArguments& arguments, bool why, bool json, const Console& console) {
  const auto loaded = load(arguments, console);
  if (!loaded) return report_error(loaded.error(), console);
  const auto planned = plan_training(loaded->spec);
  if (!planned) return report_error(planned.error(), console);
  const Plan& plan = planned->plan;
  const ClusterSpec& cluster = planned->cluster;
  if (json) {
    console.out << to_json(plan, cluster) << '\n';
    return ExitCode::success;
  }
  console.out << fmt::format("schedule {}, {} microbatches of {} sequences, predicted step {}\n\n",
                             to_string(plan.schedule_kind), plan.shape.microbatch_count,
                             plan.shape.microbatch_size, format_seconds(plan.predicted_step));
  console.out << stage_table(plan, cluster).to_text() << '\n'
              << device_table(plan, cluster, {}).to_text();
  for (const DeviceId unused : plan.unused)
    console.out << fmt::format("\ndevice {} gets nothing\n", cluster.devices[unused.index()].name);
  console.out << '\n' << sources_text(cluster);
  if (why) console.out << '\n' << reasons_text(plan);
  return ExitCode::success;
}

}  // namespace

void add_plan(CLI::App& app, ChosenCommand& chosen) {
  CLI::App* command = app.add_subcommand("plan", "Show what would run where, without training");
  const auto arguments = add_config_arguments(*command);
  const auto why = std::make_shared<bool>(false);
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--explain", *why, "Give the reasons, and what the runner-up would cost");
  command->add_flag("--json", *json, "Print the plan as JSON");
  command->footer(
      "Examples:\n"
      "  troupe plan conf/demo.toml --explain\n"
      "  troupe plan conf/mixed_gpus.toml --set training.microbatches=8\n"
      "  troupe plan conf/demo.toml --json > plan.json\n"
      "\nCPU devices are measured first. Exit code 3: the model does not fit.");
  command->callback([=, &chosen] {
    chosen.body = [=](const Console& console) { return plan(*arguments, *why, *json, console); };
  });
}

}  // namespace troupe
