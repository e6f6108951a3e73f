#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <ostream>

#include "actors/launch.h"
#include "apps/config_arguments.h"
#include "apps/plan_page.h"
#include "apps/plan_tables.h"
#include "apps/small_file.h"

namespace troupe {
namespace {

/// Where the times come from that the plan stands on.
std::string sources_text(const ClusterSpec& cluster) {
  std::vector<std::pair<std::string, std::string>> names_by_source;  // in order of first device
  for (const DeviceSpec& device : cluster.devices) {
    const std::string source =
        !device.measured.empty() ? "measured just now, an embedding, a block and a head"
        : device.kind == DeviceKind::cpu
            ? fmt::format("rates measured by troupe profile ({})", device.rates_from)
            : fmt::format("from the catalogue's rates ({})", device.rates_from);
    const auto known = std::find_if(names_by_source.begin(), names_by_source.end(),
                                    [&](const auto& one) { return one.first == source; });
    if (known == names_by_source.end())
      names_by_source.emplace_back(source, device.name);
    else
      known->second += ", " + device.name;
  }
  std::string text;
  for (const auto& [source, names] : names_by_source) text += source + ": " + names + "\n";
  return text;
}

struct PlanArguments {
  bool why = false;
  bool json = false;
  std::string html;  ///< file to write
};

Status write_page(const PlanArguments& arguments, const RunSpec& spec, const PlannedRun& planned) {
  if (arguments.html.empty()) return {};
  const auto source = SimulationSource::from_planned(spec.name, spec, planned);
  return write_file(arguments.html, plan_page(spec, plans_side_by_side(source)));
}

ExitCode plan(const ConfigArguments& config,
              const PlanArguments& arguments,
              const Console& console) {
  const auto loaded = load(config, console);
  if (!loaded) return report_error(loaded.error(), console);
  const auto planned = plan_training(loaded->spec);
  if (!planned) return report_error(planned.error(), console);
  if (const Status written = write_page(arguments, loaded->spec, *planned); !written)
    return report_error(written.error(), console);
  const Plan& plan = planned->plan;
  const ClusterSpec& cluster = planned->cluster;
  if (arguments.json) {
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
  if (arguments.why) console.out << '\n' << reasons_text(plan);
  return ExitCode::success;
}

}  // namespace

void add_plan(CLI::App& app, ChosenCommand& chosen) {
  CLI::App* command = app.add_subcommand("plan", "Show what would run where, without training");
  const auto config = add_config_arguments(*command);
  const auto arguments = std::make_shared<PlanArguments>();
  command->add_flag("--explain", arguments->why,
                    "Give the reasons, and what the runner-up would cost");
  command->add_flag("--json", arguments->json, "Print the plan as JSON");
  command
      ->add_option("--html", arguments->html,
                   "Write a page: this plan, the runner-up and other schedules side by side")
      ->type_name("FILE");
  command->footer(
      "Examples:\n"
      "  troupe plan conf/demo.toml --explain\n"
      "  troupe plan conf/mixed_gpus.toml --set training.microbatches=8\n"
      "  troupe plan conf/demo.toml --json > plan.json\n"
      "  troupe plan conf/demo.toml --html plans.html\n"
      "\nCPU devices without rates of a profile are measured first. Exit code 3: the model does "
      "not fit.");
  command->callback([=, &chosen] {
    chosen.body = [=](const Console& console) { return plan(*config, *arguments, console); };
  });
}

}  // namespace troupe
