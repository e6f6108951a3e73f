#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ostream>

#include "apps/config_arguments.h"
#include "apps/plan_inputs.h"
#include "apps/simulation_tables.h"
#include "apps/small_file.h"
#include "apps/timeline_svg.h"
#include "apps/what_if_arguments.h"

namespace troupe {
namespace {

struct SimulateArguments {
  std::vector<std::string> files;
  std::vector<std::string> overrides;
  std::vector<std::string> schedules;
  bool json = false;
  bool text = false;
  std::size_t width = 100;
  std::string trace, svg;
};

/// What was asked for, played.
struct Simulation {
  std::vector<SimulationCase> cases;
  std::vector<SimulatedStep> steps;
  std::vector<std::vector<std::string>> what_ifs;  ///< by case
  std::vector<RefusedCase> refused;                ///< of several
};

bool is_plan_json(const std::string& file) {
  return file.size() > 5 && file.substr(file.size() - 5) == ".json";
}

Result<SimulationSource> open_source(const std::string& file,
                                     const SimulateArguments& arguments,
                                     const Console& console) {
  if (!is_plan_json(file)) {
    const auto loaded = load({file, arguments.overrides}, console, ModelNeed::any);
    if (!loaded) return loaded.error();
    const PlanInputs inputs(*loaded);
    auto planned = inputs.plan();
    if (!planned) return planned.error();
    ModelProfile profile = inputs.profile_at(planned->plan.shape);
    return SimulationSource::from_planned(file, loaded->spec, std::move(*planned),
                                          std::move(profile), inputs.looked_at());
  }
  if (!arguments.overrides.empty())
    return Error{ErrorCode::invalid_input,
                 fmt::format("--set: {} is a plan, which is made already; give the configuration "
                             "instead",
                             file)};
  const auto text = read_file(file, 256, "a plan");
  if (!text) return text.error();
  return SimulationSource::from_plan_json(file, *text);
}

/// Of several cases, those that cannot be played take no other with them.
bool only_this(const Error& error, bool several) {
  return several &&
         (error.code == ErrorCode::does_not_fit || error.code == ErrorCode::invalid_input);
}

Result<Simulation> run_all(const SimulateArguments& arguments,
                           const WhatIfArguments& what_if_arguments,
                           const Console& console) {
  Simulation all;
  std::vector<std::string> schedules = arguments.schedules;
  if (schedules.empty()) schedules.emplace_back();
  const bool several = arguments.files.size() * schedules.size() > 1;
  for (const std::string& name : schedules) TROUPE_TRY(check_schedule_name(name));
  for (const std::string& file : arguments.files) {
    const auto source = open_source(file, arguments, console);
    if (!source && several && source.error().code == ErrorCode::does_not_fit) {
      for (const std::string& name : schedules) all.refused.push_back({file, name, source.error()});
      continue;
    }
    if (!source) return source.error();
    const auto what_if = read_what_if(what_if_arguments, source->cluster());
    if (!what_if) return what_if.error();
    for (const std::string& name : schedules) {
      auto one = source->schedule(name);
      if (!one && only_this(one.error(), several)) {
        all.refused.push_back({file, name, one.error()});
        continue;
      }
      if (!one) return one.error();
      auto step = simulate_case(*one, *what_if);
      if (!step) return step.error();
      all.cases.push_back(std::move(*one));
      all.steps.push_back(std::move(*step));
      all.what_ifs.push_back(what_if_lines(*what_if, source->cluster()));
    }
  }
  return all;
}

Status write_drawings(const SimulateArguments& arguments, const Simulation& all) {
  std::vector<std::pair<std::string, std::string>> files;
  if (!arguments.trace.empty()) {
    std::vector<std::pair<std::string, Timeline>> timelines;
    for (std::size_t i = 0; i < all.cases.size(); ++i)
      timelines.emplace_back(fmt::format("{} {}", all.cases[i].source, all.cases[i].schedule_name),
                             all.steps[i].played.timeline);
    files.emplace_back(arguments.trace,
                       to_chrome_trace(timelines, device_names(all.cases.front().cluster)));
  }
  if (!arguments.svg.empty()) {
    const Timeline& timeline = all.steps.front().played.timeline;
    if (!(timeline.makespan() > 0))
      return Error{ErrorCode::invalid_input, "--svg: no action ended, so there is nothing to draw"};
    files.emplace_back(arguments.svg,
                       timeline_svg(fmt::format("{}, schedule {}", all.cases.front().source,
                                                all.cases.front().schedule_name),
                                    timeline, all.cases.front().cluster));
  }
  return write_files(files);
}

void print_text(const SimulateArguments& arguments, const Simulation& all, const Console& console) {
  if (all.cases.size() + all.refused.size() > 1) {
    if (!all.cases.empty())
      for (const std::string& line : all.what_ifs.front())
        console.out << "what if: " << line << '\n';
    console.out << comparison_table(all.cases, all.steps, all.refused).to_text();
    for (const SimulationCase& one : all.cases)
      for (const std::string& note : one.notes)
        console.out << "note: " << one.schedule_name << ": " << note << '\n';
  } else if (!all.cases.empty()) {
    console.out << simulation_text(all.cases.front(), all.steps.front(), all.what_ifs.front());
  }
  for (std::size_t i = 0; arguments.text && i < all.cases.size(); ++i) {
    console.out << '\n';
    if (all.cases.size() > 1)
      console.out << all.cases[i].source << ' ' << all.cases[i].schedule_name << '\n';
    console.out << timeline_text(all.steps[i].played.timeline, device_names(all.cases[i].cluster),
                                 arguments.width);
  }
}

void print_json(const Simulation& all, const Console& console) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < all.cases.size(); ++i)
    list.push_back(simulation_json(all.cases[i], all.steps[i], all.what_ifs[i]));
  for (const RefusedCase& one : all.refused)
    list.push_back({{"source", one.source},
                    {"schedule", one.schedule},
                    {"fits", one.why.code == ErrorCode::does_not_fit ? nlohmann::ordered_json(false)
                                                                     : nlohmann::ordered_json()},
                    {"error", one.why.text}});
  console.out << (list.size() == 1 ? list.front() : list)
                     .dump(1, ' ', false, nlohmann::json::error_handler_t::replace)
              << '\n';
}

ExitCode simulate(const SimulateArguments& arguments,
                  const WhatIfArguments& what_if,
                  const Console& console) {
  if (const Status apart = check_outputs(arguments.files, {arguments.trace, arguments.svg}); !apart)
    return report_error(apart.error(), console);
  const auto all = run_all(arguments, what_if, console);
  if (!all) return report_error(all.error(), console);
  if (all->cases.size() > 1 && !arguments.svg.empty())
    return report_error({ErrorCode::invalid_input,
                         "--svg draws one schedule of one configuration; --trace holds several"},
                        console);
  const bool one_fits =
      std::any_of(all->cases.begin(), all->cases.end(),
                  [](const SimulationCase& one) { return shortfall_text(one).empty(); });
  if (one_fits)
    if (const Status drawn = write_drawings(arguments, *all); !drawn)
      return report_error(drawn.error(), console);
  if (arguments.json)
    print_json(*all, console);
  else
    print_text(arguments, *all, console);
  bool too_large = !all->cases.empty();
  for (const RefusedCase& one : all->refused)
    too_large = too_large || one.why.code == ErrorCode::does_not_fit;
  for (const SimulationCase& one : all->cases) {
    const std::string shortfall = shortfall_text(one);
    if (!shortfall.empty())
      report_error({ErrorCode::does_not_fit, fmt::format("{} {} does not fit: {}", one.source,
                                                         one.schedule_name, shortfall)},
                   console);
  }
  if (one_fits) return ExitCode::success;
  return too_large ? ExitCode::does_not_fit : ExitCode::usage;
}

}  // namespace

void add_simulate(CLI::App& app, ChosenCommand& chosen) {
  CLI::App* command = app.add_subcommand(
      "simulate", "Play a plan's step on test time: who is busy, who waits for what");
  const auto arguments = std::make_shared<SimulateArguments>();
  command
      ->add_option("CONF", arguments->files,
                   "Configuration (TOML) or plan.json; several are compared")
      ->required();
  command
      ->add_option("--set", arguments->overrides,
                   "Override a key, as in --set training.microbatches=8; may repeat")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
  command
      ->add_option("--schedule", arguments->schedules,
                   "Another schedule than the plan's, trained or published; several are compared")
      ->type_name("NAME")
      ->expected(1)
      ->take_all();
  const auto what_if = add_what_if_arguments(*command);
  command->add_flag("--json", arguments->json, "Print everything as JSON");
  command->add_flag("--text", arguments->text, "Draw the timeline as text too");
  command->add_option("--width", arguments->width, "Columns of --text (100)")
      ->check(CLI::Range(10, 10000));
  command->add_option("--trace", arguments->trace, "Write a Chrome trace (Perfetto)")
      ->type_name("FILE");
  command->add_option("--svg", arguments->svg, "Write the timeline as a drawing")
      ->type_name("FILE");
  command->footer(
      "Examples:\n"
      "  troupe simulate conf/demo.toml --text\n"
      "  troupe simulate conf/demo.toml --schedule 1f1b --schedule zb-h2\n"
      "  troupe simulate conf/demo.toml --set training.microbatches=8 --slow t4=2\n"
      "  troupe simulate conf/demo.toml --link \"v100>t4=bandwidth:10 MB/s,loss:0.05\" --seed 7\n"
      "  troupe simulate conf/demo.toml --stop \"t4=20 ms\"\n"
      "  troupe simulate runs/demo/plan.json --svg step.svg --trace step.json\n"
      "\nSchedules: gpipe, 1f1b, interleaved, zb-h1 (trained; planned anew), 1f1b-flush, "
      "1f1b-2bw,\n"
      "zb-h2, zb-1p, zb-2p, zb-v, chimera, breadth-first, layered, dualpipe (on the plan's "
      "devices).\n"
      "Idle time by reason: fill (before the first action), stage before, stage after and link "
      "(what\n"
      "the next action waits for), drain (the others end their part), nothing to do.\n"
      "exposed: the idle time in which what a device waits for is on a link.\n"
      "Nothing is trained; CPU devices are measured first. Exit code 3: it does not fit.\n"
      "Of several, those that cannot be played have a row that says why; the exit code is 0 where "
      "one\nfits, else 3 where one is only too large, else 2.");
  command->callback([=, &chosen] {
    chosen.body = [=](const Console& console) { return simulate(*arguments, *what_if, console); };
  });
}

}  // namespace troupe
