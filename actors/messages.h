/// Every message between actors, on one page. What can cross a process boundary has one field list
/// and a type id; floating-point numbers travel as bit patterns (`Bits64`), because CAF 0.17
/// damages infinities, NaN and denormals. Every message carries the plan epoch and the step it
/// belongs to. All stay under 64 KiB: long lists and texts are cut into parts.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "actors/caf_facade.h"
#include "actors/data/batches.h"
#include "actors/step_row.h"
#include "devices/device.h"
#include "devices/link.h"
#include "planner/drift.h"
#include "planner/plan.h"
#include "planner/result.h"

namespace troupe {

/// Both ends of a connection must speak this version.
inline constexpr std::uint32_t protocol_version = 3;
inline constexpr std::size_t control_message_limit = 64 * 1024;
inline constexpr std::size_t document_part_bytes = 32 * 1024;
inline constexpr std::size_t list_part_count = 1024;  ///< entries of a list in one message

/// A double as its bits.
struct Bits64 {
  static constexpr const char* name = "Bits64";
  std::uint64_t bits = 0;
  Bits64() = default;
  Bits64(double x) : bits(std::bit_cast<std::uint64_t>(x)) {}  // NOLINT: implicit
  double value() const { return std::bit_cast<double>(bits); }
  auto fields() { return std::tie(bits); }
  friend bool operator==(const Bits64&, const Bits64&) = default;
};

// ---- joining -----------------------------------------------------------------------------------

/// A node to the run: who it is. `agent` is its node actor.
struct Hello {
  static constexpr const char* name = "Hello";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  std::uint32_t protocol = protocol_version;
  std::string build;
  std::string node;
  std::int64_t pid = 0;
  caf::actor agent;
  auto fields() { return std::tie(epoch, step, protocol, build, node, pid, agent); }
};

/// The run to a node: it is admitted.
struct Welcome {
  static constexpr const char* name = "Welcome";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  std::uint32_t protocol = protocol_version;
  std::string build;
  auto fields() { return std::tie(epoch, step, protocol, build); }
};

/// One part of a text that is too long for one message: "run" (JSON of the run) or "plan".
struct DocumentPart {
  static constexpr const char* name = "DocumentPart";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  std::string document;
  std::uint32_t index = 0;
  std::uint32_t count = 0;
  std::string text;
  auto fields() { return std::tie(epoch, step, document, index, count, text); }
};

/// To a node: measure your CPU devices (the document "run" came before). Reply: Measured.
struct MeasureDevices {
  static constexpr const char* name = "MeasureDevices";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  auto fields() { return std::tie(epoch, step); }
};

/// Measured rates by device, as JSON.
struct Measured {
  static constexpr const char* name = "Measured";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  std::string text;
  auto fields() { return std::tie(epoch, step, text); }
};

/// To a node: build what the documents say. `process` numbers the node's process; `link_host` is
/// where its tensor link listens. Reply: PlanAdopted.
struct AdoptPlan {
  static constexpr const char* name = "AdoptPlan";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  std::uint32_t process = 0;
  std::uint32_t process_count = 1;
  bool remote_links = false;  ///< there are stages in other processes
  std::string link_host;
  std::uint64_t nonce = 0;  ///< of the run, for its tensor links
  caf::actor run;
  auto fields() {
    return std::tie(epoch, step, process, process_count, remote_links, link_host, nonce, run);
  }
};

struct DeviceHandle {
  static constexpr const char* name = "DeviceHandle";
  DeviceId device;
  caf::actor actor;
  auto fields() { return std::tie(device, actor); }
};

struct PlanAdopted {
  static constexpr const char* name = "PlanAdopted";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  std::uint32_t process = 0;
  std::uint16_t link_port = 0;
  std::uint64_t data_fingerprint = 0;  ///< of the data that this process reads
  std::vector<DeviceHandle> devices;   ///< those that hold a stage
  auto fields() { return std::tie(epoch, step, process, link_port, data_fingerprint, devices); }
};

struct PeerAddress {
  static constexpr const char* name = "PeerAddress";
  std::uint32_t process = 0;
  std::string node;
  std::string host;
  std::uint16_t port = 0;
  std::vector<DeviceId> devices;
  auto fields() { return std::tie(process, node, host, port, devices); }
};

/// To a node: open the tensor links. Reply: Ready.
struct ConnectPeers {
  static constexpr const char* name = "ConnectPeers";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  std::vector<PeerAddress> peers;
  auto fields() { return std::tie(epoch, step, peers); }
};

/// To a node: parameters of its stages from the seed (empty folder) or from a checkpoint. Reply:
/// Ready.
struct FillStages {
  static constexpr const char* name = "FillStages";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  std::string checkpoint;
  auto fields() { return std::tie(epoch, step, checkpoint); }
};

struct Ready {
  static constexpr const char* name = "Ready";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  std::uint32_t process = 0;
  auto fields() { return std::tie(epoch, step, process); }
};

// ---- a step ------------------------------------------------------------------------------------

/// The run to each device that holds a stage.
struct BeginStep {
  static constexpr const char* name = "BeginStep";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  std::uint64_t trained_tokens = 0;
  std::uint32_t sequences = 0;  ///< of the step, over all microbatches
  bool hash_state = false;
  bool trace = false;
  auto fields() { return std::tie(epoch, step, trained_tokens, sequences, hash_state, trace); }
};

struct TensorBits {
  static constexpr const char* name = "TensorBits";
  std::uint32_t tensor = 0;
  std::uint64_t bits = 0;
  auto fields() { return std::tie(tensor, bits); }
  friend bool operator==(const TensorBits&, const TensorBits&) = default;
};

/// A device to the run: N of `stage` has finished. `left`: parts that still follow.
struct NormsReady {
  static constexpr const char* name = "NormsReady";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  StageId stage;
  std::uint32_t left = 0;
  std::vector<TensorBits> sums;  ///< sums of squares by global tensor
  auto fields() { return std::tie(epoch, step, stage, left, sums); }
};

/// The run to each device, when N of every stage has come: U may start.
struct ApplyUpdate {
  static constexpr const char* name = "ApplyUpdate";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  std::uint64_t adam_step = 0;
  Bits64 learning_rate;
  Bits64 gradient_scale;
  bool skip = false;
  auto fields() { return std::tie(epoch, step, adam_step, learning_rate, gradient_scale, skip); }
};

/// Hashes of the state of a device's stages, before its StepFinished.
struct StateHashes {
  static constexpr const char* name = "StateHashes";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  DeviceId device;
  std::vector<TensorBits> hashes;
  auto fields() { return std::tie(epoch, step, device, hashes); }
};

/// A device to the run: its lane and its links are done.
struct StepFinished {
  static constexpr const char* name = "StepFinished";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  DeviceId device;
  std::vector<Bits64> losses;  ///< by microbatch, of the last stage; else empty
  Bits64 busy_seconds;
  std::uint64_t peak_bytes = 0;
  std::uint64_t allocations = 0;  ///< ever made in the arena
  std::uint32_t resent = 0;       ///< tensors that the device's links had to send again
  auto fields() {
    return std::tie(epoch, step, device, losses, busy_seconds, peak_bytes, allocations, resent);
  }
};

/// The run to each device: the validation loss of microbatches of one batch. The device runs
/// forward alone.
struct BeginEvaluation {
  static constexpr const char* name = "BeginEvaluation";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  std::uint32_t batch = 0;
  std::uint32_t sequences = 0;
  auto fields() { return std::tie(epoch, step, batch, sequences); }
};

struct EvaluationFinished {
  static constexpr const char* name = "EvaluationFinished";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  DeviceId device;
  std::uint32_t batch = 0;
  std::vector<Bits64> losses;  ///< sums of token losses by microbatch, of the last stage
  auto fields() { return std::tie(epoch, step, device, batch, losses); }
};

/// Where a device stands: sent every second while a step is open.
struct Progress {
  static constexpr const char* name = "Progress";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  DeviceId device;
  std::uint64_t finished = 0;  ///< actions since the start of the run
  std::string waiting;         ///< "d1 waits at B0.0 for XB1.0"
  auto fields() { return std::tie(epoch, step, device, finished, waiting); }
};

/// Something of a device, its stages or its links failed: the run cannot go on as it is.
struct DeviceFailed {
  static constexpr const char* name = "DeviceFailed";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  DeviceId device;
  std::uint8_t code = 0;  ///< ErrorCode
  std::string text;
  auto fields() { return std::tie(epoch, step, device, code, text); }
};

// ---- checkpoints -------------------------------------------------------------------------------

/// To a node: write your stages' shards into the checkpoint folder. Reply: ShardsWritten.
struct WriteShards {
  static constexpr const char* name = "WriteShards";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  std::string folder;
  auto fields() { return std::tie(epoch, step, folder); }
};

/// What was written, as lines of the manifest (JSON, one per shard).
struct ShardsWritten {
  static constexpr const char* name = "ShardsWritten";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  std::vector<std::string> shards;
  auto fields() { return std::tie(epoch, step, shards); }
};

// ---- traces ------------------------------------------------------------------------------------

struct PlayedSpan {
  static constexpr const char* name = "PlayedSpan";
  Action action;
  DeviceId from;
  DeviceId to;  ///< = from: the device's own lane
  Bits64 begin, end;
  auto fields() { return std::tie(action, from, to, begin, end); }
  friend bool operator==(const PlayedSpan&, const PlayedSpan&) = default;
};

struct SpansPlayed {
  static constexpr const char* name = "SpansPlayed";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  std::vector<PlayedSpan> spans;
  auto fields() { return std::tie(epoch, step, spans); }
};

// ---- ending ------------------------------------------------------------------------------------

/// Finish the step in hand, then end.
struct StopRun {
  static constexpr const char* name = "StopRun";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  auto fields() { return std::tie(epoch, step); }
};

/// To a node: stop its actors, close its links, free its devices. Reply: Ready.
struct CloseNode {
  static constexpr const char* name = "CloseNode";
  PlanEpoch epoch;
  std::uint64_t step = 0;
  bool leave = false;  ///< the node process exits
  auto fields() { return std::tie(epoch, step, leave); }
};

// ---- within a process only ---------------------------------------------------------------------

/// A device's thread to its device actor.
struct WorkFinished {
  PlanEpoch epoch;
  std::uint64_t step = 0;
  Action action;
  WorkTimes times;
  std::shared_ptr<const Error> failure;  ///< null: it went well
};

/// A link to a device actor.
struct LinkNews {
  LinkEvent event;
};

/// To the data actor; reply: Tokens. `validation`: the validation batch of that number.
struct NeedTokens {
  PlanEpoch epoch;
  std::uint64_t step = 0;
  bool evaluation = false;
  std::uint32_t validation = 0;
};

struct Tokens {
  PlanEpoch epoch;
  std::uint64_t step = 0;
  std::shared_ptr<const TokenBatch> batch;
};

struct OwnedPlanRequest;
/// To the planner actor; reply: PlanProposed, or does_not_fit and the like.
struct ProposePlan {
  PlanEpoch epoch;  ///< of the plan to be made
  std::uint64_t step = 0;
  std::shared_ptr<const OwnedPlanRequest> request;
};

struct PlanProposed {
  PlanEpoch epoch;
  std::uint64_t step = 0;
  std::shared_ptr<const Plan> plan;
};

/// The run to the planner actor: a step as it went.
struct StepObserved {
  PlanEpoch epoch;
  std::uint64_t step = 0;
  StepRow row;
};

/// The run to the planner actor: a drift that is in force now. If another plan would be faster,
/// `observer` gets RunNews with the advice.
struct DriftSeen {
  PlanEpoch epoch;
  std::uint64_t step = 0;
  Drift drift;
  caf::actor observer;
};

/// To the planner actor; reply: Observed.
struct NeedObservations {
  PlanEpoch epoch;
  std::uint64_t step = 0;
};

struct Observed {
  PlanEpoch epoch;
  std::uint64_t step = 0;
  Observations observations;
};

/// The door to the thread that called run_training.
struct NodeJoined {
  Hello hello;
};

struct RunActorSetup;
/// To the run actor: everything is in place. It begins the first step.
struct StartRun {
  PlanEpoch epoch;
  std::uint64_t step = 0;
  std::shared_ptr<const RunActorSetup> setup;
};

/// The run actor to the thread that called run_training.
struct RunNews {
  PlanEpoch epoch;
  std::uint64_t step = 0;
  enum class Kind : std::uint8_t {
    step,
    evaluation,
    checkpoint,
    trace,
    event,
    drift,        ///< steps are off the plan's prediction
    drift_ended,  ///< they are near it again
    advice,       ///< another plan would be faster under the drift
    ended
  };
  Kind kind = Kind::ended;
  StepRow row;
  EvaluationRow evaluation;
  std::string text;  ///< checkpoint: its folder; event, drift, advice: what is to be said
  Timeline timeline;
  std::shared_ptr<const Error> failure;  ///< of an ended run
  bool stopped = false;                  ///< ended early because it was asked to
};

}  // namespace troupe

CAF_BEGIN_TYPE_ID_BLOCK(troupe, first_custom_type_id)
CAF_ADD_TYPE_ID(troupe, (troupe::Hello))
CAF_ADD_TYPE_ID(troupe, (troupe::Welcome))
CAF_ADD_TYPE_ID(troupe, (troupe::DocumentPart))
CAF_ADD_TYPE_ID(troupe, (troupe::MeasureDevices))
CAF_ADD_TYPE_ID(troupe, (troupe::Measured))
CAF_ADD_TYPE_ID(troupe, (troupe::AdoptPlan))
CAF_ADD_TYPE_ID(troupe, (troupe::PlanAdopted))
CAF_ADD_TYPE_ID(troupe, (troupe::ConnectPeers))
CAF_ADD_TYPE_ID(troupe, (troupe::FillStages))
CAF_ADD_TYPE_ID(troupe, (troupe::Ready))
CAF_ADD_TYPE_ID(troupe, (troupe::BeginStep))
CAF_ADD_TYPE_ID(troupe, (troupe::NormsReady))
CAF_ADD_TYPE_ID(troupe, (troupe::ApplyUpdate))
CAF_ADD_TYPE_ID(troupe, (troupe::StateHashes))
CAF_ADD_TYPE_ID(troupe, (troupe::StepFinished))
CAF_ADD_TYPE_ID(troupe, (troupe::BeginEvaluation))
CAF_ADD_TYPE_ID(troupe, (troupe::EvaluationFinished))
CAF_ADD_TYPE_ID(troupe, (troupe::Progress))
CAF_ADD_TYPE_ID(troupe, (troupe::DeviceFailed))
CAF_ADD_TYPE_ID(troupe, (troupe::WriteShards))
CAF_ADD_TYPE_ID(troupe, (troupe::ShardsWritten))
CAF_ADD_TYPE_ID(troupe, (troupe::SpansPlayed))
CAF_ADD_TYPE_ID(troupe, (troupe::StopRun))
CAF_ADD_TYPE_ID(troupe, (troupe::CloseNode))
CAF_END_TYPE_ID_BLOCK(troupe)

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::WorkFinished)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::LinkNews)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::NeedTokens)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::Tokens)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::ProposePlan)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::PlanProposed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::StepObserved)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::DriftSeen)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::NeedObservations)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::Observed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::NodeJoined)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::StartRun)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::RunNews)
