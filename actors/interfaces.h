/// The actors: how each is made, and which messages it takes (-> what it answers or sends).
///
///   run      StartRun, NormsReady, StateHashes, StepFinished, EvaluationFinished, Progress,
///            DeviceFailed, SpansPlayed, StopRun   -> RunNews to its observer
///   planner  ProposePlan -> PlanProposed, StepObserved, DriftSeen, NeedObservations -> Observed
///   node     DocumentPart, MeasureDevices -> Measured, AdoptPlan -> PlanAdopted,
///            ConnectPeers -> Ready, FillStages -> Ready, WriteShards -> ShardsWritten,
///            CloseNode -> Ready
///   device   BeginStep, ApplyUpdate, BeginEvaluation, WorkFinished, LinkNews
///            -> NormsReady, StateHashes, StepFinished, EvaluationFinished, Progress, DeviceFailed
///   stage    FillStages -> Ready, WriteShards -> ShardsWritten
///   data     NeedTokens -> Tokens
///   storage  WriteShards -> ShardsWritten
///   trace    SpansPlayed, gathered and passed on
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "actors/messages.h"
#include "actors/run_spec.h"
#include "actors/stage_runner.h"
#include "actors/token_source.h"
#include "devices/zmq_link.h"
#include "planner/plan.h"
#include "planner/simulate.h"

namespace troupe {

/// Holds the next step's tokens ready. `own_thread`: reading may wait for a disk; tests on test
/// time say no.
caf::actor spawn_data_actor(caf::actor_system& system,
                            std::shared_ptr<TokenSource> source,
                            bool own_thread = true);

/// Gathers the spans of its process and sends them on, in parts, to `run`.
caf::actor spawn_trace_actor(caf::actor_system& system, caf::actor run);

/// What a plan is made from: a PlanRequest (planner/strategies.h) that holds its parts.
struct OwnedPlanRequest {
  ModelSpec model;
  ClusterSpec cluster;
  ModelProfile profile;
  PlanOptions options;
  ProfileAt profile_at = {};  ///< for the changes that a refusal offers
};
/// Collects what steps took and proposes plans; decides nothing.
caf::actor spawn_planner_actor(caf::actor_system& system);

struct DeviceActorSetup {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const Schedule> evaluation;  ///< evaluation_schedule(plan->schedule)
  DeviceId device;
  std::shared_ptr<Device> hardware;
  std::vector<std::shared_ptr<StageRunner>> runners;  ///< of the device's stages
  std::shared_ptr<LinkPort> links;
  ActionSeconds modelled;  ///< of each action, for devices that are emulated
  /// What the device takes longer by in a step than modelled; null: nothing.
  std::function<double(std::uint64_t step)> disturbed = {};
  caf::actor run, data, trace;
};
/// Its link events come as LinkNews: attach the device to the hub with a sink that posts them.
caf::actor spawn_device_actor(caf::actor_system& system, DeviceActorSetup setup);

/// Fills and keeps the parameters of one stage.
caf::actor spawn_stage_actor(caf::actor_system& system,
                             std::shared_ptr<StageRunner> runner,
                             std::shared_ptr<Device> hardware);

struct StorageActorSetup {
  std::uint32_t process = 0;        ///< index of its shard
  std::uint32_t process_count = 1;  ///< owners of shards
  ModelSpec model;
  std::vector<std::shared_ptr<StageRunner>> runners;  ///< of this process
};
/// Writes this process's shards of checkpoints, between steps, on its own thread.
caf::actor spawn_storage_actor(caf::actor_system& system, StorageActorSetup setup);

struct NodeActorSetup {
  /// Nodes of the cluster that this process plays, by name.
  std::vector<std::string> nodes;
  /// Where tokens come from; null: the files of the run.
  std::shared_ptr<TokenSource> source;
  ZmqLinkOptions link = {};
};
/// One per process: makes what the run's documents say, and takes it down again.
caf::actor spawn_node_actor(caf::actor_system& system, NodeActorSetup setup);

/// A process that holds devices, as the run sees it.
struct RunMember {
  std::uint32_t process = 0;
  std::string name;  ///< "node n1 (pid 4711)"
  caf::actor agent;  ///< its node actor
};

struct RunActorSetup {
  std::shared_ptr<const Plan> plan;
  AdamWSpec optimizer;
  LearningRateSpec learning_rate;
  std::uint64_t first_step = 1;  ///< after a resume: the checkpoint's + 1
  std::uint64_t last_step = 1;
  std::uint64_t adam_steps = 0;        ///< updates applied before the first step
  std::uint64_t state_hash_every = 1;  ///< 0: never
  std::uint64_t evaluate_every = 0;    ///< 0: after the last step alone
  std::uint32_t evaluation_batches = 0;
  std::uint64_t checkpoint_every = 0;  ///< 0: after the last step alone
  bool checkpoints = false;
  std::uint64_t trace_step = 0;  ///< this step's timeline is played back; 0: none
  /// Steps are held against the plan's prediction; a drift is told as RunNews.
  bool watch_drift = false;
  /// Without any sign of progress for so long, the run fails and says who waits for what.
  Seconds patience = 30;
  std::vector<DeviceHandle> devices;
  std::vector<std::string> device_names;  ///< by DeviceId
  std::vector<std::string> node_names;    ///< by DeviceId, for drifts
  std::vector<RunMember> members;
  caf::actor data;
  caf::actor observer;  ///< gets RunNews
  caf::actor planner;   ///< gets StepObserved and DriftSeen; may be null
  /// Begins a checkpoint after this step: its folder. Then shards are written, then `seal` is
  /// called with their descriptions. Both may write files; called on the run actor's own thread.
  std::function<Result<std::string>(std::uint64_t step)> begin_checkpoint;
  std::function<Result<std::string>(const std::string& folder,
                                    std::uint64_t step,
                                    std::uint64_t adam_steps,
                                    const std::vector<std::string>& shards)>
      seal_checkpoint;
};
/// Starts steps at StartRun; decides clipping and skipping once for all; commits steps.
caf::actor spawn_run_actor(caf::actor_system& system);

struct DoorActorSetup {
  std::vector<std::string> nodes;  ///< that may join, each once
  std::string build = {};          ///< that they must have
  caf::actor observer;             ///< gets NodeJoined
};
/// Takes Hello of node processes; admits or refuses them.
caf::actor spawn_door_actor(caf::actor_system& system, DoorActorSetup setup);

/// A step number for keys of an evaluation's transfers, apart from those of training.
constexpr std::uint64_t evaluation_key(std::uint64_t step, std::uint32_t batch) {
  return (std::uint64_t{1} << 63) | (step << 20) | batch;
}

}  // namespace troupe
