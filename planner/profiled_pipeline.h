/// Step time and memory of a pipeline whose layers were measured: stages on unlike devices, links
/// whose bandwidth depends on the message, replicas of unlike devices that add up their gradients
/// after the last backward. One forward one backward throughout.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/units.h"

namespace troupe {

/// Measured bandwidth of a link: c2 x^2 + c1 x + c0 GB/s with x = log2(message in MB), at most
/// `most` (where the fit was made), at least `least` (where the parabola falls below zero).
struct BandwidthCurve {
  double c2 = 0, c1 = 0, c0 = 0;
  BytesPerSecond most = 0;
  BytesPerSecond least = 1e6;
  BytesPerSecond at(double bytes) const;
};

/// The slower of two ends.
Seconds message_seconds(const BandwidthCurve& a, const BandwidthCurve& b, double bytes);

/// Measured sums over the layers of a stage, for one microbatch; `update` for the step.
struct ProfiledStage {
  Seconds forward = 0, backward = 0, update = 0;
};

/// The link after a stage. A tensor that fits the sender's buffer leaves the stage free to go on
/// and only takes the link; a larger one goes hand to hand, and both stages wait until it is there.
struct ProfiledEdge {
  Seconds forward = 0, backward = 0;
  bool buffered = true;
};

struct ProfiledReplica {
  std::vector<ProfiledStage> stages;
  std::vector<ProfiledEdge> edges;  ///< one fewer than stages
};

/// Replicas have the same number of stages; each takes `microbatch_count` microbatches.
struct ProfiledPipeline {
  std::vector<ProfiledReplica> replicas;
  std::vector<Seconds> synchronise;  ///< by stage: all-reduce of its gradients over the replicas
  std::uint32_t microbatch_count = 1;
};

/// By stage: when its last backward ends, in the schedule's own simulation.
std::vector<Seconds> last_backward(const ProfiledReplica& replica, std::uint32_t microbatch_count);

/// A stage waits for its slowest replica, adds up the gradients, updates; the step ends with the
/// last stage that has done so. Promise: at least one replica, stage and microbatch.
Seconds step_seconds(const ProfiledPipeline& pipeline);

/// Ring all-reduce over `replicas`: 2 (n - 1) / n of the bytes over the slowest link.
Seconds ring_all_reduce_seconds(BytesPerSecond slowest, double bytes, std::uint32_t replicas);

/// What a stage holds beside tensors and how much the allocator takes on top of them.
struct MemoryAllowance {
  double context_bytes = 0;  ///< of the device: driver, kernels, communicators
  double fragmentation = 0;  ///< of the tensors: 0.1 is 10 %
};

/// Peak bytes of the fullest stage under 1F1B: weights, gradients and the two moments of Adam (4 x
/// parameter bytes), and the activations of the min(m, p - s) microbatches in flight.
/// `parameter_bytes` and `activation_bytes` (of one microbatch) by stage.
double fullest_stage_bytes(const std::vector<double>& parameter_bytes,
                           const std::vector<double>& activation_bytes,
                           std::uint32_t microbatch_count,
                           const MemoryAllowance& allowance);

}  // namespace troupe
