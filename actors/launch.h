/// One call trains: it opens the nodes (in this process, as child processes, or joining from
/// elsewhere), measures, plans, builds, runs the steps and takes everything down again. The other
/// side is `run_node`.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/run_spec.h"
#include "actors/step_row.h"
#include "actors/token_source.h"
#include "devices/zmq_link.h"
#include "planner/plan.h"

namespace troupe {

/// Joins, losses, checkpoints and the like, for events.jsonl.
struct RunEvent {
  std::string kind;  ///< "node_joined", "checkpoint_written", "run_failed", ...
  std::string text;
  std::uint64_t step = 0;  ///< the last committed step when it happened
  std::chrono::system_clock::time_point time{};
};

/// What the caller is told, on the thread that called run_training. All are optional.
struct RunCallbacks {
  /// Before anything is allocated. `cluster`: with measured rates. An error ends the run.
  std::function<Status(const Plan& plan, const ClusterSpec& cluster)> on_plan;
  std::function<void(const StepRow&)> on_step;
  std::function<void(const EvaluationRow&)> on_evaluation;
  std::function<void(const std::string& folder)> on_checkpoint;
  /// The played timeline of `RunOptions::trace_step`.
  std::function<void(const Timeline&)> on_trace;
  std::function<void(const RunEvent&)> on_event;
  /// Asked often. True: finish the step in hand, save a checkpoint, end.
  std::function<bool()> should_stop;
};

/// What is not part of the run's description.
struct RunOptions {
  /// Where checkpoints go; empty: none are written.
  std::string checkpoint_folder;
  std::uint64_t trace_step = 0;  ///< 0: none
  /// Program that is started as `PROGRAM node --join HOST:PORT --name NAME`; empty: this one.
  std::string node_program;
  /// Only for nodes in this process: other tokens than the files'.
  std::shared_ptr<TokenSource> tokens;
  /// Of the tensor link of this process.
  ZmqLinkOptions link = {};
};

struct RunOutcome {
  std::uint64_t steps_done = 0;  ///< the last committed step, counted from the very first
  bool stopped = false;          ///< ended early because it was asked to
  StepRow last_step;
  EvaluationRow last_evaluation;
  std::string last_checkpoint;  ///< its folder; empty: none was written
};

/// Trains. Errors: does_not_fit and invalid_input before anything is started; peer_lost names node,
/// pid, exit status and the last lines of its log. No process of the run is left behind.
Result<RunOutcome> run_training(const RunSpec& spec,
                                const RunCallbacks& callbacks,
                                const RunOptions& options = {});

struct PlannedRun {
  Plan plan;
  ClusterSpec cluster;  ///< with measured rates, for the plan's microbatches
};
/// The run with what its plan chose in place of what it left open (planner/plan_choice.h), as if
/// that had been written; measured times are those with its microbatches.
RunSpec settled(RunSpec spec, const Plan& plan);
/// The cluster as plans see it: measures CPU devices here, whatever node they belong to.
Result<ClusterSpec> measured_cluster(const RunSpec& spec);
/// The plan alone: measures CPU devices here, whatever node they belong to; starts nothing.
Result<PlannedRun> plan_training(const RunSpec& spec);

/// What a joining node tells and asks. All may be empty.
struct JoinCallbacks {
  /// After the first second, once. `why`: how the last attempt failed.
  std::function<void(const std::string& why)> on_waiting;
  std::function<void()> on_joined;     ///< the run has taken this node; it serves from now on
  std::function<bool()> should_stop;   ///< asked between attempts, and while serving
  std::function<void()> on_must_stay;  ///< asked to stop while serving, which the run decides; once
};

/// A node process: joins the run at host:port as the node `name`, serves it, returns when the run
/// has ended. Error timeout: no run answered; cancelled: `should_stop` said so; protocol: the run
/// speaks another version; peer_lost: the run went away.
Status run_node(const std::string& host,
                std::uint16_t port,
                const std::string& name,
                Seconds join_timeout = 30,
                const JoinCallbacks& callbacks = {});

/// "0.1.0 (protocol 3)": must be equal on both ends.
std::string build_text();

}  // namespace troupe
