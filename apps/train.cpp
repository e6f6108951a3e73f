#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <ostream>

#include "actors/changed_settings.h"
#include "actors/checkpoint/checkpoint.h"
#include "actors/data/batches.h"
#include "actors/launch.h"
#include "apps/config_arguments.h"
#include "apps/interrupts.h"
#include "apps/plan_tables.h"
#include "apps/progress.h"
#include "apps/report.h"
#include "apps/run_folder.h"
#include "planner/plan_choice.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

struct TrainArguments {
  bool resume = false;
  std::string resume_from;  ///< empty: the newest of the run
  bool json = false;
  bool quiet = false;
};

/// What one run writes while it goes; keeps what the report needs. The folder is made when there is
/// a plan: what cannot run leaves nothing behind.
class Recorder {
 public:
  using MakeFolder = std::function<Result<RunFolder>(EarlierRows&)>;

  Recorder(MakeFolder make_folder,
           const LoadedConfig& config,
           std::uint64_t trace_step,
           const Console& console,
           bool quiet)
      : make_folder_(std::move(make_folder)),
        quiet_(quiet),
        progress_(console.err, console.terminal, config.spec.steps) {
    report_.spec = config.spec;
    report_.config = config.resolved;
    report_.played_step = trace_step;
  }

  RunCallbacks callbacks() {
    RunCallbacks out;
    out.on_plan = [this](const Plan& plan, const ClusterSpec& cluster) {
      return note_plan(plan, cluster);
    };
    out.on_step = [this](const StepRow& row) {
      report_.steps.push_back(row);
      if (folder_) keep(folder_->add_metrics(metrics_line(row, report_.cluster)));
      if (!quiet_) progress_.step(row);
    };
    out.on_evaluation = [this](const EvaluationRow& row) {
      report_.evaluations.push_back(row);
      if (folder_) keep(folder_->add_metrics(metrics_line(row)));
      say(fmt::format("step {}: validation loss {:.4f}", row.step, row.loss));
    };
    out.on_checkpoint = [this](const std::string& path) { say("checkpoint " + path); };
    out.on_trace = [this](const Timeline& played) { report_.played = played; };
    out.on_event = [this](const RunEvent& event) { note_event(event); };
    out.should_stop = [this] { return Interrupts::asked() || !disk_.ok(); };
    return out;
  }

  /// trace.json and report.html.
  void finish(double unigram_loss) {
    progress_.finish();
    report_.unigram_loss = unigram_loss;
    if (!folder_) return;
    std::vector<std::pair<std::string, Timeline>> timelines{{"planned", report_.plan.timeline}};
    if (!report_.played.spans.empty()) timelines.emplace_back("played", report_.played);
    keep(folder_->write("trace.json", to_chrome_trace(timelines, device_names(report_.cluster))));
    keep(folder_->write("report.html", report_html(report_)));
  }

  bool planned() const { return !report_.plan.stages.empty(); }
  const ReportInput& report() const { return report_; }
  const Status& disk() const { return disk_; }  ///< the first thing that could not be written

 private:
  Status note_plan(const Plan& plan, const ClusterSpec& cluster) {
    report_.plan = plan;
    report_.cluster = cluster;
    report_.spec = settled(std::move(report_.spec), plan);
    report_.config = with_choices(report_.config, report_.spec);
    EarlierRows earlier;
    auto made = make_folder_(earlier);
    TROUPE_TRY(made);
    report_.earlier = std::move(earlier.steps);
    report_.evaluations = std::move(earlier.evaluations);
    folder_.emplace(std::move(*made));
    keep(folder_->write("config.toml", report_.config));
    keep(folder_->write("plan.json", to_json(plan, cluster)));
    for (const RunEvent& event : report_.events) keep(folder_->add_event(event_line(event)));
    for (const std::string& note : choice_notes(plan)) say(note);
    say(fmt::format("schedule {}, predicted step {}", to_string(plan.schedule_kind),
                    format_seconds(plan.predicted_step)));
    say(stage_table(plan, cluster).to_text());
    return {};
  }
  void note_event(const RunEvent& event) {
    report_.events.push_back(event);
    if (event.kind == "listening")
      for (const NodeId node : report_.spec.joining_nodes)
        progress_.note(fmt::format("waiting for: troupe node --join {} --name {}", event.text,
                                   report_.spec.cluster.nodes.at(node.index()).name));
    if (event.kind == "data_changed")
      progress_.note(fmt::format("warning: {}; from here on the run is not the one that was saved",
                                 event.text));
    if (event.kind == "drift") progress_.note("warning: " + event.text);
    if (event.kind == "plan_suggested") progress_.note(event.text);
    if (event.kind == "drift_ended") progress_.note("as planned again: " + event.text);
    if (folder_) keep(folder_->add_event(event_line(event)));
  }
  void say(const std::string& text) {
    if (!quiet_) progress_.note(text);
  }
  void keep(const Status& status) {
    if (disk_.ok() && !status.ok()) disk_ = status;
  }

  MakeFolder make_folder_;
  std::optional<RunFolder> folder_;
  bool quiet_;
  Progress progress_;
  ReportInput report_;
  Status disk_;
};

/// Newer checkpoints that cannot be used are named, and the damaged ones among them renamed: the
/// run will save those steps again.
Status set_aside(const std::vector<ListedCheckpoint>& skipped,
                 const fs::path& used,
                 const Console& console) {
  for (const ListedCheckpoint& entry : skipped) {
    console.err << fmt::format("warning: {}; going on from {}\n", entry.problem->text,
                               used.string());
    if (entry.folder.filename().string().front() == '.') continue;  // an interrupted save
    fs::path aside = entry.folder.string() + ".damaged";
    std::error_code failure;
    for (int n = 2; fs::exists(aside, failure); ++n)
      aside = fmt::format("{}.damaged-{}", entry.folder.string(), n);
    fs::rename(entry.folder, aside, failure);
    if (failure)
      return Error{ErrorCode::io, fmt::format("cannot rename {} to {}: {}", entry.folder.string(),
                                              aside.string(), failure.message())};
    console.err << fmt::format("warning: what is left of it is kept as {}\n", aside.string());
  }
  return {};
}

/// What --resume means.
struct ResumeFrom {
  std::string path;
  std::uint64_t step = 0;
  std::vector<ListedCheckpoint> skipped;  ///< newer ones that cannot be used
};
Result<ResumeFrom> checkpoint_to_resume(const TrainArguments& arguments, const fs::path& folder) {
  ResumeFrom from;
  std::string& path = from.path;
  path = arguments.resume_from;
  if (path.empty()) {
    const auto latest = latest_complete(folder / "checkpoints");
    if (!latest) return latest.error();
    if (!latest->folder)
      return Error{ErrorCode::invalid_input,
                   fmt::format("--resume: {} has no complete checkpoint{}; to begin again, take "
                               "another name with --set run.name=NAME, or remove {}",
                               (folder / "checkpoints").string(),
                               latest->skipped.empty()
                                   ? std::string{}
                                   : fmt::format(" ({})", latest->skipped.front().problem->text),
                               folder.string())};
    path = latest->folder->string();
    from.skipped = latest->skipped;
  }
  CheckpointOptions options;
  options.verify = false;  // the run reads it in full
  const auto opened = Checkpoint::open(path, options);
  if (!opened) return opened.error();
  from.step = opened->run().step;
  return from;
}

/// Settings that decide a step's tokens and arithmetic, against the configuration of the
/// checkpoint's run where it lies in one: a resumed run may have others, but not without a word.
/// The content of data files is compared when they are open (the event data_changed).
void warn_of_other_settings(const std::string& checkpoint,
                            const RunSpec& now,
                            const Console& console) {
  const auto path = config_of_run(checkpoint);
  if (!path) return;
  const auto loaded = load_config(*path, {.overrides = {}, .look_at_files = false});
  if (!loaded) return;  // of another version
  const std::string changed = changed_settings(loaded->spec, now);
  if (!changed.empty())
    console.err << fmt::format(
        "warning: not as in {}: {}; from here on the run is not the one that was saved\n", *path,
        changed);
}

/// A resumed run has as many microbatches as the run had whose checkpoint it goes on from, unless
/// it says how many: chosen anew, they might be others, and the losses with them.
Result<LoadedConfig> with_earlier_microbatches(LoadedConfig config,
                                               ConfigArguments arguments,
                                               const Console& console) {
  const std::string& checkpoint = config.spec.checkpoint.resume_from;
  if (!config.spec.plan.choose_microbatches || checkpoint.empty()) return config;
  if (const auto path = config_of_run(checkpoint)) {
    const auto earlier = load_config(*path, {.overrides = {}, .look_at_files = false});
    if (earlier && !earlier->spec.plan.choose_microbatches) {
      console.err << fmt::format("microbatches: {}, as in {}\n",
                                 earlier->spec.shape.microbatch_count, *path);
      arguments.overrides.push_back(
          fmt::format("training.microbatches={}", earlier->spec.shape.microbatch_count));
      return load(arguments, console);
    }
  }
  CheckpointOptions options;
  options.verify = false;  // the run reads it in full
  const auto opened = Checkpoint::open(checkpoint, options);
  if (opened && opened->run().step > 0)
    console.err << fmt::format(
        "warning: nothing beside {} says how many microbatches its run had; they are chosen anew, "
        "and from here on the run may not be the one that was saved\n",
        checkpoint);
  return config;
}

double unigram_loss_of(const RunSpec& spec) {
  const auto data = Dataset::open(spec.data, spec.shape, spec.model.vocabulary, spec.seed);
  return data && data->validation_tokens() > 0 ? data->unigram_entropy() : 0.0;
}

void print_summary(const RunOutcome& outcome,
                   const ReportInput& report,
                   const fs::path& folder,
                   bool json,
                   const Console& console) {
  const MeasuredRun measured = measure_steps(report.steps);
  const Table devices = device_table(report.plan, report.cluster, measured);
  if (json) {
    nlohmann::ordered_json out;
    out["folder"] = folder.string();
    out["steps"] = outcome.steps_done;
    out["stopped"] = outcome.stopped;
    if (!report.steps.empty()) out["loss"] = report.steps.back().loss();
    if (!report.evaluations.empty()) out["validation_loss"] = report.evaluations.back().loss;
    if (report.unigram_loss > 0) out["unigram_loss"] = report.unigram_loss;
    out["predicted_step_seconds"] = report.plan.predicted_step;
    out["measured_step_seconds"] = measured.step;
    out["stages"] = stage_table(report.plan, report.cluster).to_json();
    out["devices"] = devices.to_json();
    out["checkpoint"] = outcome.last_checkpoint;
    console.out << out.dump() << '\n';
    return;
  }
  console.out << '\n' << devices.to_text() << '\n';
  if (measured.step > 0)
    console.out << fmt::format("step        predicted {}, measured {} (median)\n",
                               format_seconds(report.plan.predicted_step),
                               format_seconds(measured.step));
  if (!report.evaluations.empty())
    console.out << fmt::format("validation  loss {:.4f}{}\n", report.evaluations.back().loss,
                               report.unigram_loss > 0
                                   ? fmt::format(", unigram model {:.4f}", report.unigram_loss)
                                   : std::string{});
  if (!outcome.last_checkpoint.empty())
    console.out << "checkpoint  " << outcome.last_checkpoint << '\n';
  console.out << "report      " << (folder / "report.html").string() << '\n';
  if (outcome.stopped)
    console.out << fmt::format("stopped after step {}; go on with --resume\n", outcome.steps_done);
}

ExitCode run(const LoadedConfig& config,
             const fs::path& folder,
             const ResumeFrom& from,
             const TrainArguments& arguments,
             const Console& console) {
  RunOptions options;
  options.checkpoint_folder = (folder / "checkpoints").string();
  // Not the first step, which touches its memory for the first time.
  options.trace_step = std::min(config.spec.steps, from.step + 3);
  const auto make_folder = [&](EarlierRows& earlier) -> Result<RunFolder> {
    if (!arguments.resume) return RunFolder::create(folder);
    auto opened = RunFolder::reopen(folder, from.step, earlier);
    // Only now is the folder this process's own, and the run known to be possible.
    if (opened) TROUPE_TRY(set_aside(from.skipped, from.path, console));
    return opened;
  };
  Recorder recorder(make_folder, config, options.trace_step, console, arguments.quiet);
  const auto outcome = [&] {
    const Interrupts listening;
    return run_training(config.spec, recorder.callbacks(), options);
  }();
  if (recorder.planned()) recorder.finish(unigram_loss_of(config.spec));
  if (!recorder.disk()) {
    report_error(recorder.disk().error(), console);
    return ExitCode::failure;
  }
  if (!outcome) return report_error(outcome.error(), console);
  print_summary(*outcome, recorder.report(), folder, arguments.json, console);
  return ExitCode::success;
}

ExitCode train(ConfigArguments config_arguments,
               const TrainArguments& arguments,
               const Console& console) {
  auto config = load(config_arguments, console);
  if (!config) return report_error(config.error(), console);
  const fs::path folder = fs::path(config->spec.folder) / config->spec.name;
  if (!arguments.resume) {
    if (const Status unused = RunFolder::check_unused(folder); !unused)
      return report_error(unused.error(), console);
    config = with_earlier_microbatches(std::move(*config), config_arguments, console);
    if (!config) return report_error(config.error(), console);
    return run(*config, folder, {}, arguments, console);
  }
  const auto from = checkpoint_to_resume(arguments, folder);
  if (!from) return report_error(from.error(), console);
  if (!arguments.json && !arguments.quiet)
    console.out << fmt::format("going on from {}, step {}\n", from->path, from->step);
  config_arguments.overrides.push_back("checkpoint.resume_from=" + from->path);
  config = load(config_arguments, console);
  if (config) config = with_earlier_microbatches(std::move(*config), config_arguments, console);
  if (!config) return report_error(config.error(), console);
  warn_of_other_settings(from->path, config->spec, console);
  return run(*config, folder, *from, arguments, console);
}

}  // namespace

void add_train(CLI::App& app, ChosenCommand& chosen) {
  CLI::App* command = app.add_subcommand("train", "Train a model along a plan");
  const auto config = add_config_arguments(*command);
  const auto arguments = std::make_shared<TrainArguments>();
  auto* resume = command
                     ->add_option("--resume", arguments->resume_from,
                                  "Go on from a checkpoint; without a value from the run's newest")
                     ->type_name("[CHECKPOINT]")
                     ->expected(0, 1);
  command->add_flag("--json", arguments->json, "Print the summary as JSON");
  command->add_flag("--quiet", arguments->quiet, "No progress");
  command->footer(
      "Examples:\n"
      "  troupe train conf/demo.toml\n"
      "  troupe train conf/demo.toml --set run.name=tour --set run.steps=100\n"
      "  troupe train conf/demo.toml --resume\n"
      "\nCtrl-C (or SIGTERM) finishes the step and saves a checkpoint; a second one leaves at "
      "once.");
  command->callback([=, &chosen] {
    arguments->resume = resume->count() > 0;
    chosen.body = [=](const Console& console) { return train(*config, *arguments, console); };
  });
}

}  // namespace troupe
