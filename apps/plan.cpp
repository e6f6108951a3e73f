#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <ostream>
#include <sstream>

#include "actors/launch.h"
#include "apps/config_arguments.h"
#include "apps/joint_tables.h"
#include "apps/outcome_page.h"
#include "apps/plan_inputs.h"
#include "apps/plan_page.h"
#include "apps/plan_tables.h"
#include "apps/small_file.h"
#include "apps/strategy_tables.h"
#include "planner/automatic.h"
#include "planner/counted.h"
#include "planner/plan_choice.h"

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
  for (const auto& [source, names] : names_by_source)
    text += fmt::format("{}: {}\n", source, names);
  return text;
}

/// What was asked on the command line.
struct PlanArguments {
  bool why = false;
  bool json = false;
  std::string strategy;  ///< empty: the configuration's own plan
  bool compares = false;
  std::string compared;  ///< names with commas between; empty: all
  std::string html;      ///< file to write
};

Status write_page(const PlanArguments& arguments,
                  const LoadedConfig& config,
                  const RunSpec& spec,
                  const PlannedRun& planned) {
  if (arguments.html.empty()) return {};
  const PlanInputs inputs(config);
  const auto source = SimulationSource::from_planned(
      spec.name, spec, planned, inputs.profile_at(planned.plan.shape), inputs.looked_at());
  return write_file(arguments.html,
                    plan_page(spec, config.model, inputs.looked_at(), plans_side_by_side(source)));
}

/// What stands above the plan of a model that is not trained yet.
void print_looked_at(const LoadedConfig& config, const Console& console) {
  const std::string text = PlanInputs(config).looked_at();
  if (!text.empty()) console.out << text << "\n\n";
}

void print_plan(const Plan& plan, const ClusterSpec& cluster, const Console& console) {
  console.out << fmt::format(
      "schedule {}, {} of {}, predicted step {}\n\n", to_string(plan.schedule_kind),
      counted(plan.shape.microbatch_count, "microbatch"),
      counted(plan.shape.microbatch_size, "sequence"), format_seconds(plan.predicted_step));
  for (const std::string& note : choice_notes(plan)) console.out << note << '\n';
  if (!choice_notes(plan).empty()) console.out << '\n';
  console.out << stage_table(plan, cluster).to_text() << '\n'
              << device_table(plan, cluster, {}).to_text();
  for (const PlanNote& note : plan.notes)
    if (note.kind == NoteKind::unused) console.out << '\n' << to_text(note) << '\n';
  console.out << '\n' << sources_text(cluster);
}

void print_workers(const StrategyOutcome& outcome,
                   const ClusterSpec& cluster,
                   const Console& console) {
  const WorkerPlan& workers = *outcome.workers;
  console.out << fmt::format(
      "{} virtual workers (allocation {}), predicted step {}, of which {} exchange of gradients\n"
      "replicas are priced, they do not train yet\n\n",
      workers.workers.size(), to_string(workers.allocation), format_seconds(outcome.step),
      format_seconds(workers.synchronise));
  console.out << worker_table(workers, cluster).to_text() << '\n' << sources_text(cluster);
}

void print_experts(const ExpertPlan& plan, const ClusterSpec& cluster, const Console& console) {
  console.out << fmt::format("{}, predicted step {}; it is priced, it does not train yet\n",
                             plan.zebra ? "zebra: attention and experts on different devices"
                                        : "experts and tokens shared out over the devices",
                             format_seconds(plan.step))
              << expert_text(plan) << '\n'
              << expert_table(plan, cluster).to_text() << '\n'
              << sources_text(cluster);
}

/// Everything that --explain adds, as JSON.
nlohmann::json why_json(const StrategyOutcome& outcome,
                        const OpenChoices& open,
                        const PlanRequest& request) {
  nlohmann::json out{
      {"reasons", reasons_json(reasons_of(outcome, request), outcome.step, request.cluster)}};
  if (outcome.strategy == Strategy::configured)
    out["auto"] = automatic_json(run_strategy(Strategy::automatic, request), request.cluster);
  if (open.microbatches || open.schedule)
    out["left_open"] = choices_json(step_choices(request, open));
  return out;
}

void print_json(const StrategyOutcome& outcome,
                const OpenChoices& open,
                const PlanRequest& request,
                bool why,
                const Console& console) {
  nlohmann::json out = why ? why_json(outcome, open, request) : nlohmann::json::object();
  if (outcome.joint) {
    out["joint"] = joint_json(*outcome.joint, request.cluster);
  } else if (outcome.workers) {
    out["step_seconds"] = outcome.step;
    out["workers"] = worker_table(*outcome.workers, request.cluster).to_json();
  } else if (outcome.experts) {
    out["step_seconds"] = outcome.step;
    out["experts"] = expert_json(*outcome.experts, request.cluster);
  } else if (!why) {
    console.out << to_json(*outcome.plan, request.cluster) << '\n';
    return;
  } else {
    out["plan"] = nlohmann::json::parse(to_json(*outcome.plan, request.cluster));
  }
  console.out << out.dump(2) << '\n';
}

/// `open`: what is chosen by nobody, for --explain; only of the planner's own plan.
ExitCode print_outcome(const StrategyOutcome& outcome,
                       const LoadedConfig& config,
                       const OpenChoices& open,
                       const PlanRequest& request,
                       const PlanArguments& arguments,
                       const Console& console) {
  if (arguments.json) {
    print_json(outcome, open, request, arguments.why, console);
    return ExitCode::success;
  }
  print_looked_at(config, console);
  if (outcome.plan)
    print_plan(*outcome.plan, request.cluster, console);
  else if (outcome.experts)
    print_experts(*outcome.experts, request.cluster, console);
  else if (outcome.joint)
    console.out << joint_text(*outcome.joint, request.cluster) << '\n'
                << sources_text(request.cluster);
  else
    print_workers(outcome, request.cluster, console);
  if (!arguments.why) return ExitCode::success;
  console.out << '\n' << reasons_text(reasons_of(outcome, request), outcome.step, request.cluster);
  if (open.microbatches || open.schedule)
    console.out << choices_text(step_choices(request, open), outcome.step);
  if (outcome.strategy == Strategy::configured)
    console.out << automatic_text(run_strategy(Strategy::automatic, request), outcome.step,
                                  request.cluster);
  if (outcome.plan) console.out << '\n' << reasons_text(*outcome.plan);
  return ExitCode::success;
}

/// Whatever was open of the step stays so for `auto`, which chooses over everything at once.
PlanOptions open_options(const LoadedConfig& config, PlanOptions options) {
  options.choose_microbatches = config.spec.plan.choose_microbatches;
  options.choose_schedule = config.spec.plan.choose_schedule;
  options.choose_recompute = config.spec.plan.choose_recompute;
  return options;
}

/// Success where anything can be played, else does_not_fit where anything is only too large.
ExitCode code_of(const std::vector<StrategyOutcome>& outcomes) {
  ExitCode code = ExitCode::usage;
  for (const StrategyOutcome& one : outcomes) {
    if (!one.refused) return ExitCode::success;
    if (one.refused->code == ErrorCode::does_not_fit) code = ExitCode::does_not_fit;
  }
  return code;
}

ExitCode compare(const LoadedConfig& config,
                 const PlanRequest& request,
                 const std::vector<Strategy>& strategies,
                 bool json,
                 const Console& console) {
  const PlanOptions options = open_options(config, request.options);
  const PlanRequest all{request.model, request.cluster, request.profile, options,
                        request.profile_at};
  // Where something is pinned or settled, `auto` is asked for something else than the others.
  const bool same = options.pinned.empty() && !options.open();
  std::vector<StrategyOutcome> outcomes;
  for (const Strategy strategy : strategies)
    if (strategy != Strategy::automatic)
      outcomes.push_back(run_strategy(strategy, request));
    else if (same)
      outcomes.push_back(run_strategy(strategy, all, outcomes));
    else
      outcomes.push_back(run_strategy(strategy, all));
  const Table table = strategy_table(outcomes, request.cluster);
  if (!json) print_looked_at(config, console);
  if (json)
    console.out << table.to_json().dump(2) << '\n';
  else
    console.out << fmt::format("schedule {}, {} of {}\n\n", to_string(request.options.schedule),
                               counted(request.options.shape.microbatch_count, "microbatch"),
                               counted(request.options.shape.microbatch_size, "sequence"))
                << table.to_text()
                << "\nbusy, bubble: shares of the step; memory: of the fullest device; configured: "
                   "the plan that trains;\nwhat does not train yet is priced\n"
                << automatic_line(outcomes, request.cluster);
  return code_of(outcomes);
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

/// The cluster with measured times. What `spec` leaves open is settled as the planner's own search
/// does, so that strategies are placed under one schedule and the same microbatches.
Result<ClusterSpec> settled_cluster(const PlanInputs& inputs, RunSpec& spec) {
  if (!spec.plan.open()) {
    spec.plan.shape = spec.shape;
    return inputs.cluster();
  }
  const auto planned = inputs.plan();
  if (!planned && planned.error().code == ErrorCode::does_not_fit) {
    // Another strategy may fit, with the step as it is written.
    spec.plan.shape = spec.shape;
    if (spec.plan.choose_recompute) spec.plan.recompute = Recompute::full;
    spec.plan.choose_microbatches = spec.plan.choose_schedule = spec.plan.choose_recompute = false;
    return inputs.cluster();
  }
  if (!planned) return planned.error();
  spec = settled(std::move(spec), planned->plan);
  return planned->cluster;
}

/// A plan that does not fit, with what would: host memory, a disk, recomputation.
Error with_way_out(Error error, const LoadedConfig& config, const PlanInputs& inputs) {
  if (error.code != ErrorCode::does_not_fit || !config.spec.plan.pinned.empty()) return error;
  const auto cluster = inputs.cluster();
  if (!cluster) return error;
  const ModelProfile profile = inputs.profile_at(config.spec.shape);
  PlanOptions options = config.spec.plan;
  options.shape = config.spec.shape;
  const auto joint = joint_plan(config.spec.model, *cluster, profile, options,
                                [&](const StepShape& shape) { return inputs.profile_at(shape); });
  if (joint && !joint->trains())
    error.text +=
        fmt::format("; priced, but it does not train yet: {} ({} a step; --strategy auto)",
                    untrained_text(*joint, *cluster), format_seconds(joint->step));
  return error;
}

/// Flags that would say nothing together.
Status check_flags(const PlanArguments& arguments) {
  const auto refuse = [](std::string text) {
    return Error{ErrorCode::invalid_input, std::move(text)};
  };
  if (!arguments.html.empty() && arguments.compares)
    return refuse(
        "--html shows one plan beside others; leave out --compare, or name a strategy with "
        "--strategy NAME --html FILE");
  if (arguments.compares && (arguments.why || !arguments.strategy.empty()))
    return refuse(
        "--compare puts strategies in one table, without their reasons; leave out --explain and "
        "--strategy, or name one with --strategy NAME --explain");
  return {};
}

/// The plan of another strategy, or a table of several.
ExitCode plan_otherwise(const LoadedConfig& config,
                        Strategy strategy,
                        const std::vector<Strategy>& compared,
                        const PlanArguments& arguments,
                        const Console& console) {
  RunSpec spec = config.spec;
  if (!spec.plan.pinned.empty() && !arguments.compares)
    return report_error(
        {ErrorCode::invalid_input,
         fmt::format("--strategy {} with plan.plan = \"pinned\": pinned stages leave nothing to "
                     "place; leave them out, or --strategy, or take --compare={},configured",
                     arguments.strategy, arguments.strategy)},
        console);
  const PlanInputs inputs(config);
  const auto cluster = settled_cluster(inputs, spec);
  if (!cluster) return report_error(cluster.error(), console);
  const auto profile_at = [&](const StepShape& shape) { return inputs.profile_at(shape); };
  const ModelProfile profile = profile_at(spec.shape);
  if (strategy == Strategy::automatic && !arguments.compares)
    spec.plan = open_options(config, spec.plan);
  const PlanRequest request{spec.model, *cluster, profile, spec.plan, profile_at};
  if (arguments.compares) return compare(config, request, compared, arguments.json, console);
  StrategyOutcome outcome = run_strategy(strategy, request);
  if (outcome.refused) return report_error(*outcome.refused, console);
  inputs.add_note(outcome.plan);
  if (!arguments.html.empty()) {
    const StrategyOutcome trained = trained_outcome(request);
    const Status written = write_file(
        arguments.html, outcome_page(spec.name, inputs.looked_at(), outcome, trained, request));
    if (!written) return report_error(written.error(), console);
  }
  return print_outcome(outcome, config, {}, request, arguments, console);
}

ExitCode plan(const ConfigArguments& file, const PlanArguments& arguments, const Console& console) {
  const auto strategy = arguments.strategy.empty() ? Result<Strategy>(Strategy::configured)
                                                   : parse_strategy(arguments.strategy);
  if (!strategy) return report_error(strategy.error(), console);
  const bool own = *strategy == Strategy::configured;
  if (const Status agree = check_flags(arguments); !agree)
    return report_error(agree.error(), console);
  if (const Status apart = check_outputs({file.file}, {arguments.html}); !apart)
    return report_error(apart.error(), console);
  const auto compared = strategies_of(arguments);
  if (!compared) return report_error(compared.error(), console);
  const auto loaded = load(file, console, ModelNeed::any);
  if (!loaded) return report_error(loaded.error(), console);
  if (arguments.compares || !own)
    return plan_otherwise(*loaded, *strategy, *compared, arguments, console);
  const PlanInputs inputs(*loaded);
  const auto planned = inputs.plan();
  if (!planned) return report_error(with_way_out(planned.error(), *loaded, inputs), console);
  const RunSpec spec = settled(loaded->spec, planned->plan);
  if (const Status written = write_page(arguments, *loaded, spec, *planned); !written)
    return report_error(written.error(), console);
  const auto profile_at = [&](const StepShape& shape) { return inputs.profile_at(shape); };
  const ModelProfile profile = profile_at(spec.shape);
  const PlanRequest request{spec.model, planned->cluster, profile, spec.plan, profile_at};
  return print_outcome(measured_outcome(Strategy::configured, planned->plan, planned->cluster),
                       *loaded, loaded->open, request, arguments, console);
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
                      "How to place: even, edgepipe, hetpipe, memory-balanced, zebra, "
                      "expert-parallel, auto, configured");
  CLI::Option* compared =
      command
          ->add_option("--compare", what.compared,
                       "All strategies in one table, the configuration's own plan first, or those "
                       "named, with commas between")
          ->expected(0, 1);
  command->add_flag("--json", what.json, "Print the plan, or the table, as JSON");
  command
      ->add_option("--html", what.html,
                   "Write a page: this plan, the runner-up and other schedules side by side; of "
                   "another strategy, what it came to beside the plan that trains")
      ->type_name("FILE");
  command->footer(
      "Examples:\n"
      "  troupe plan conf/demo.toml --explain\n"
      "  troupe plan conf/mixed_gpus.toml --set training.microbatches=8\n"
      "  troupe plan conf/mixed_gpus_pinned.toml --compare\n"
      "  troupe plan conf/mixed_gpus.toml --compare=even,auto --json\n"
      "  troupe plan conf/demo.toml --set training.microbatches=auto --set plan.schedule=auto\n"
      "  troupe plan conf/demo.toml --strategy hetpipe --explain\n"
      "  troupe plan conf/demo.toml --json > plan.json\n"
      "  troupe plan conf/demo.toml --html plans.html\n"
      "  troupe plan conf/offload.toml --strategy auto --html auto.html\n"
      "\nCPU devices without rates of a profile are measured first. Exit code 3: the model does "
      "not fit.\n--compare ends with 0 where one strategy has a plan; else with 3 where one is "
      "only "
      "too large,\nwith 2 where all are refused otherwise.");
  command->callback([=, &chosen] {
    chosen_arguments->compares = compared->count() > 0;
    chosen.body = [=](const Console& console) {
      return plan(*arguments, *chosen_arguments, console);
    };
  });
}

}  // namespace troupe
