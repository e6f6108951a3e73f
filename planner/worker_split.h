/// Stages of one virtual worker: which of its devices stand where in the pipeline, with which
/// layers, each within its memory.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "planner/cluster.h"
#include "planner/result.h"

namespace troupe {

struct WorkerDevice {
  std::uint32_t kind = 0;  ///< row of WorkerCosts::seconds
  NodeId node;
  double memory_bytes = 0;
};

struct WorkerCluster {
  std::vector<WorkerDevice> devices;
  LinkSpec within_node, between_nodes;  ///< of one device to another; a bandwidth of 0: no cost
};

/// One layer of the model.
struct WorkerLayer {
  double state_bytes = 0;     ///< on the device that holds it: weights, gradients, optimizer
  double gradient_bytes = 0;  ///< exchanged with the other workers, once each way
  double kept_bytes = 0;      ///< from forward to backward of one microbatch
  double output_bytes = 0;    ///< to the next layer, of one microbatch; as many come back
};

/// A stage of a worker with `in_flight` microbatches.
struct WorkerStageShape {
  std::uint32_t first = 0, last = 0;  ///< layers [first, last)
  std::uint32_t after = 0;            ///< stages behind it
  std::uint32_t in_flight = 1;
  bool next_far = false;  ///< the stage behind it is on another node
};

struct WorkerCosts {
  std::vector<WorkerLayer> layers;
  /// By kind of device, by layer: forward and backward of one microbatch.
  std::vector<std::vector<Seconds>> seconds;
  /// Bytes that a stage takes from its device, where that is more than sums over its layers: never
  /// fewer for more layers, but where the stage comes to begin with layer 0. Empty: the sums, with
  /// min(in_flight, after + 1) microbatches kept (1F1B).
  std::function<double(const WorkerStageShape&)> stage_bytes;
};

struct WorkerStage {
  std::uint32_t device = 0;
  std::uint32_t first = 0, last = 0;  ///< layers [first, last)
  friend bool operator==(const WorkerStage&, const WorkerStage&) = default;
};

struct VirtualWorker {
  std::vector<WorkerStage> stages;
  std::vector<std::uint32_t> unused;  ///< devices that would only slow it down
  Seconds slowest = 0;                ///< stage
  Seconds round_trip = 0;             ///< of one microbatch: the sum over the stages
  std::uint32_t in_flight = 1;        ///< microbatches
  std::uint32_t share = 0;            ///< microbatches of the step
  /// Between two microbatches: the slowest stage, or the way of one that all places wait for.
  Seconds period() const;
};

/// Error invalid_input: no devices or layers, a kind without costs, a number that is negative or
/// not finite.
Status check_workers(const WorkerCluster& cluster, const WorkerCosts& costs);

/// Most states, and most stages looked at, of an exact search.
inline constexpr double exact_worker_states = 4e6, exact_worker_steps = 2e8;

/// The stages of one worker with the least slowest stage, over all orders and choices of its
/// devices, at most `most_stages` of them, each within its memory. A stage's time: its layers, and
/// receiving the activations and gradients at its ends. Exact by dynamic programming over what is
/// used of each class of devices (kind, node, memory), up to the limits above; beyond, devices
/// stand in the order of their memory, the largest first, and all that there are layers for are
/// used. Errors: as check_workers; invalid_input for members that are none, or twice the same, or
/// nothing in flight; does_not_fit.
Result<VirtualWorker> split_worker(
    const WorkerCluster& cluster,
    const WorkerCosts& costs,
    const std::vector<std::uint32_t>& members,
    std::uint32_t in_flight,
    std::uint32_t most_stages = std::numeric_limits<std::uint32_t>::max());

}  // namespace troupe
