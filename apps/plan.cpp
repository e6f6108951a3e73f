#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <ostream>
#include <sstream>

#include "actors/launch.h"
#include "apps/config_arguments.h"
#include "apps/plan_page.h"
#include "apps/plan_tables.h"
#include "apps/small_file.h"
#include "apps/strategy_tables.h"
#include "kernels/stage.h"

namespace troupe {
namespace {

/// Where the times come from that the plan stands on.
std::string sources_text(const ClusterSpec& cluster) {
  std::vector<std::pair<std::string, std::string>> names_by_source;  // in order of first device
  for (const DeviceSpec& device : cluster.devices) {
    const std::string source =
        device.kind == DeviceKind::cpu && device.rates_from.empty()
            ? "measured just now, an embedding, a block and a head"
        : device.kind == DeviceKind::cpu
            ? fmt::format("{} measured by troupe profile ({})",
                          device.measured.empty() ? "rates" : "rates and layers", device.rates_from)
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

/// What was asked on the command line.
struct PlanArguments {
  bool why = false;
  bool json = false;
  std::string strategy = "auto";
  bool compares = false;
  std::string compared;  ///< names with commas between; empty: all
  std::string html;      ///< file to write
};

Status write_page(const PlanArguments& arguments, const RunSpec& spec, const PlannedRun& planned) {
  if (arguments.html.empty()) return {};
  const auto source = SimulationSource::from_planned(spec.name, spec, planned);
  return write_file(arguments.html, plan_page(spec, plans_side_by_side(source)));
}

void print_plan(const Plan& plan, const ClusterSpec& cluster, const Console& console) {
  console.out << fmt::format("schedule {}, {} microbatches of {} sequences, predicted step {}\n\n",
                             to_string(plan.schedule_kind), plan.shape.microbatch_count,
                             plan.shape.microbatch_size, format_seconds(plan.predicted_step));
  console.out << stage_table(plan, cluster).to_text() << '\n'
              << device_table(plan, cluster, {}).to_text();
  constexpr std::size_t most_listed = 8;
  if (plan.unused.size() > most_listed)
    console.out << fmt::format("\n{} devices get nothing\n", plan.unused.size());
  else
    for (const DeviceId unused : plan.unused)
      console.out << fmt::format("\ndevice {} gets nothing\n",
                                 cluster.devices[unused.index()].name);
  console.out << '\n' << sources_text(cluster);
}

void print_workers(const WorkerPlan& workers, const ClusterSpec& cluster, const Console& console) {
  console.out << fmt::format(
      "{} virtual workers (allocation {}), predicted step {}, of which {} exchange of gradients\n"
      "replicas are priced, they do not train yet\n\n",
      workers.workers.size(), to_string(workers.allocation), format_seconds(workers.step),
      format_seconds(workers.synchronise));
  console.out << worker_table(workers, cluster).to_text() << '\n' << sources_text(cluster);
}

ExitCode print_outcome(const StrategyOutcome& outcome,
                       const LoadedConfig& config,
                       const PlanRequest& request,
                       const PlanArguments& arguments,
                       const Console& console) {
  const ClusterSpec& cluster = request.cluster;
  if (!outcome.plan) {
    if (arguments.json)
      console.out << nlohmann::json{{"step_seconds", outcome.step},
                                    {"workers", worker_table(*outcome.workers, cluster).to_json()}}
                         .dump(2)
                  << '\n';
    else
      print_workers(*outcome.workers, cluster, console);
    return ExitCode::success;
  }
  const Plan& plan = *outcome.plan;
  if (arguments.json) {
    if (!arguments.why) {
      console.out << to_json(plan, cluster) << '\n';
      return ExitCode::success;
    }
    auto json = nlohmann::json::parse(to_json(plan, cluster));
    const Seconds step = plan.predicted_step;
    console.out << nlohmann::json{{"plan", std::move(json)},
                                  {"reasons",
                                   reasons_json(reasons_of(plan, request), step, cluster)}}
                       .dump(2)
                << '\n';
    return ExitCode::success;
  }
  print_plan(plan, cluster, console);
  if (!arguments.why) return ExitCode::success;
  console.out << '\n' << reasons_text(reasons_of(plan, request), plan.predicted_step, cluster);
  if (config.open.microbatches || config.open.schedule)
    console.out << choices_text(step_choices(request, config.open), plan.predicted_step);
  console.out << '\n' << reasons_text(plan);
  return ExitCode::success;
}

ExitCode compare(const PlanRequest& request,
                 const std::vector<Strategy>& strategies,
                 bool json,
                 const Console& console) {
  std::vector<StrategyOutcome> outcomes;
  for (const Strategy strategy : strategies) outcomes.push_back(run_strategy(strategy, request));
  const Table table = strategy_table(outcomes, request.cluster);
  if (json)
    console.out << table.to_json().dump(2) << '\n';
  else
    console.out << table.to_text()
                << "\nbusy, bubble: shares of the step; memory: of the fullest device; replicas "
                   "are priced, they do not train yet\n";
  const bool any = std::any_of(outcomes.begin(), outcomes.end(),
                               [](const StrategyOutcome& one) { return !one.refused; });
  return any ? ExitCode::success : ExitCode::does_not_fit;
}

Result<std::vector<Strategy>> strategies_of(const PlanArguments& arguments) {
  std::vector<Strategy> chosen;
  std::istringstream names(arguments.compared);
  for (std::string name; std::getline(names, name, ',');) {
    const auto strategy = parse_strategy(name);
    if (!strategy) return strategy.error();
    if (std::find(chosen.begin(), chosen.end(), *strategy) == chosen.end())
      chosen.push_back(*strategy);
  }
  if (chosen.empty()) chosen.assign(std::begin(all_strategies), std::end(all_strategies));
  return chosen;
}

ExitCode plan(const ConfigArguments& file, const PlanArguments& arguments, const Console& console) {
  const auto strategy = parse_strategy(arguments.strategy);
  if (!strategy) return report_error(strategy.error(), console);
  if (!arguments.html.empty() && (arguments.compares || *strategy != Strategy::automatic))
    return report_error({ErrorCode::invalid_input,
                         "--html shows the automatic plan beside other schedules; leave out "
                         "--strategy and --compare"},
                        console);
  if (const Status apart = check_outputs({file.file}, {arguments.html}); !apart)
    return report_error(apart.error(), console);
  const auto compared = strategies_of(arguments);
  if (!compared) return report_error(compared.error(), console);
  const auto loaded = load(file, console);
  if (!loaded) return report_error(loaded.error(), console);
  const RunSpec& spec = loaded->spec;
  if (!spec.plan.pinned.empty() && *strategy != Strategy::automatic)
    return report_error(
        {ErrorCode::invalid_input,
         fmt::format("--strategy {} with plan.plan = \"pinned\": pinned stages leave nothing to "
                     "place; leave them out, or --strategy",
                     arguments.strategy)},
        console);
  const auto profile_at = [&](const StepShape& shape) { return profile_model(spec.model, shape); };
  const ModelProfile profile = profile_at(spec.shape);
  PlanOptions options = spec.plan;
  options.shape = spec.shape;
  if (arguments.compares || *strategy != Strategy::automatic) {
    const auto cluster = measured_cluster(spec);
    if (!cluster) return report_error(cluster.error(), console);
    const PlanRequest request{spec.model, *cluster, profile, options, profile_at};
    if (arguments.compares) return compare(request, *compared, arguments.json, console);
    const StrategyOutcome outcome = run_strategy(*strategy, request);
    if (outcome.refused) return report_error(*outcome.refused, console);
    return print_outcome(outcome, *loaded, request, arguments, console);
  }
  const auto planned = plan_training(spec);
  if (!planned) return report_error(planned.error(), console);
  if (const Status written = write_page(arguments, spec, *planned); !written)
    return report_error(written.error(), console);
  const PlanRequest request{spec.model, planned->cluster, profile, options, profile_at};
  return print_outcome(measured_outcome(Strategy::automatic, planned->plan, planned->cluster),
                       *loaded, request, arguments, console);
}

}  // namespace

void add_plan(CLI::App& app, ChosenCommand& chosen) {
  CLI::App* command = app.add_subcommand("plan", "Show what would run where, without training");
  const auto arguments = add_config_arguments(*command);
  const auto chosen_arguments = std::make_shared<PlanArguments>();
  PlanArguments& what = *chosen_arguments;
  command->add_flag("--explain", what.why,
                    "Give the reasons: what binds, the runner-up, what one more GiB or one more "
                    "device would buy (plans again for each), and what is left open");
  command->add_option("--strategy", what.strategy,
                      "How to place: even, edgepipe, hetpipe, memory-balanced, zebra, auto");
  CLI::Option* compared =
      command
          ->add_option("--compare", what.compared,
                       "All strategies in one table, or those named, with commas between")
          ->expected(0, 1);
  command->add_flag("--json", what.json, "Print the plan, or the table, as JSON");
  command
      ->add_option("--html", what.html,
                   "Write a page: this plan, the runner-up and other schedules side by side")
      ->type_name("FILE");
  command->footer(
      "Examples:\n"
      "  troupe plan conf/demo.toml --explain\n"
      "  troupe plan conf/mixed_gpus.toml --set training.microbatches=8\n"
      "  troupe plan conf/mixed_gpus.toml --compare\n"
      "  troupe plan conf/mixed_gpus.toml --compare=even,auto --json\n"
      "  troupe plan conf/demo.toml --json > plan.json\n"
      "  troupe plan conf/demo.toml --html plans.html\n"
      "\nCPU devices without rates of a profile are measured first. Exit code 3: the model does "
      "not fit.");
  command->callback([=, &chosen] {
    chosen_arguments->compares = compared->count() > 0;
    chosen.body = [=](const Console& console) {
      return plan(*arguments, *chosen_arguments, console);
    };
  });
}

}  // namespace troupe
