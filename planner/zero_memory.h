/// Closed forms of what training holds besides activations: weights, gradients and optimizer state
/// as they are sharded over replicas (ZeRO) and placed on tiers, what DeepSpeed's own estimators
/// print for it, and the sizes and bandwidths of ZeRO-Infinity.
///
/// Sources: Rajbhandari et al. 2020 (ZeRO, arXiv:1910.02054, table 1 and section 3.1);
/// DeepSpeed's `estimate_zero2_model_states_mem_needs` and `estimate_zero3_...`;
/// Rajbhandari et al. 2021 (ZeRO-Infinity, arXiv:2104.07857, sections 3 and 4).
#pragma once

#include <cstdint>

#include "planner/units.h"

namespace troupe {

/// What the replicas of one model share out among themselves: each stage its part and the parts of
/// the stages before.
enum class ZeroStage : std::uint8_t { none, optimizer, gradients, parameters };

/// Bytes of one parameter in each part of the training state.
struct StateBytes {
  Bytes parameter = 2;
  Bytes gradient = 2;
  Bytes optimizer = 12;  ///< with the f32 master copy, where parameters are of 16 bits
  Bytes total() const { return parameter + gradient + optimizer; }
  friend bool operator==(const StateBytes&, const StateBytes&) = default;
};

/// Adam with parameters and gradients of 16 bits: master copy, mean and variance in f32.
inline constexpr StateBytes adam_16_bit{2, 2, 12};
/// The same with gradients accumulated in f32 (Megatron's bf16 training).
inline constexpr StateBytes adam_16_bit_f32_gradients{2, 4, 12};
/// f32 throughout: no second copy.
inline constexpr StateBytes adam_f32{4, 4, 8};
/// ZeRO-Infinity counts gradients of both widths: 20 bytes.
inline constexpr StateBytes adam_16_bit_both_gradients{2, 6, 12};

/// Bytes by part, of one device or one node.
struct StateMemory {
  Bytes parameters = 0, gradients = 0, optimizer = 0;
  Bytes total() const { return parameters + gradients + optimizer; }
  friend bool operator==(const StateMemory&, const StateMemory&) = default;
};

/// What one of `replicas` devices holds of `parameters` parameters. What is shared out is padded to
/// whole parameters a device. Promise: replicas > 0.
StateMemory state_memory(std::uint64_t parameters,
                         ZeroStage stage,
                         std::uint64_t replicas,
                         const StateBytes& bytes = adam_16_bit);

/// Where a part of the state is kept between uses.
enum class StateTier : std::uint8_t { device, host, disk };
struct StatePlacement {
  StateTier parameters = StateTier::device;
  StateTier gradients = StateTier::device;
  StateTier optimizer = StateTier::device;
};

/// The parts of the state where they are kept: per device, and per node for host and disk.
struct PlacedState {
  StateMemory device, host, disk;
};

/// `state_memory` of each of `devices_per_node` devices, on the tiers of `placement`. Parts that
/// are not shared out are kept once per device on whatever tier, as DeepSpeed does.
PlacedState placed_state(const StateMemory& of_device,
                         std::uint64_t devices_per_node,
                         const StatePlacement& placement);

// ---- DeepSpeed's estimators ----

/// What DeepSpeed's estimators are asked.
struct EstimatorRequest {
  std::uint64_t parameters = 0;
  std::uint64_t largest_layer = 0;  ///< parameters of the largest layer; stage 3 alone uses it
  std::uint64_t devices_per_node = 1;
  std::uint64_t nodes = 1;
  bool offload_optimizer = false;
  bool offload_parameters = false;  ///< stage 3 alone, with offload_optimizer
  bool sharded_start = true;        ///< zero.Init: stage 3 alone
};

struct EstimatedMemory {
  Bytes device = 0;         ///< of one GPU
  Bytes host = 0;           ///< of one node, with DeepSpeed's factor 1.5 for buffers
  Bytes largest_layer = 0;  ///< that is gathered: parameters and gradients of 16 bits
};

/// As `estimate_zero2_model_states_mem_needs`, to the byte.
EstimatedMemory deepspeed_zero2_estimate(const EstimatorRequest& request);
/// As `estimate_zero3_model_states_mem_needs`, to the byte.
EstimatedMemory deepspeed_zero3_estimate(const EstimatorRequest& request);

// ---- ZeRO-Infinity ----

/// A plain transformer: `layers` blocks of 12 hidden^2 parameters.
struct TransformerShape {
  std::uint64_t layers = 0, hidden = 0, heads = 0, sequence = 0;
};

/// 12 L h^2: the parameters of the blocks alone.
std::uint64_t block_parameters(const TransformerShape& shape);
/// B s ci (16 h + 2 a s) bytes: activations between two checkpoints that lie `interval` blocks
/// apart, for `batch` sequences.
Bytes activation_working_bytes(const TransformerShape& shape,
                               std::uint64_t batch,
                               std::uint64_t interval = 1);
/// The same for all blocks: nothing is recomputed.
Bytes activation_bytes(const TransformerShape& shape, std::uint64_t batch);
/// 2 B s h L / ci bytes: block inputs of 16 bits, one in `interval` blocks.
Bytes checkpoint_bytes(const TransformerShape& shape,
                       std::uint64_t batch,
                       std::uint64_t interval = 1);
/// 4 h 4 h bytes: the largest operator (h -> 4 h) with its parameters and gradients of 16 bits.
Bytes largest_operator_bytes(const TransformerShape& shape);

/// What travels between a device and a slower tier in each step.
enum class TravellingState : std::uint8_t { parameters_and_gradients, optimizer, checkpoints };

/// Flops for each byte that travels: s B, s B / 4 and 24 h ci.
double arithmetic_intensity(TravellingState state,
                            const TransformerShape& shape,
                            double batch,
                            std::uint64_t interval = 1);

/// ait bw / (ait bw + peak): the share of the time that is arithmetic, where transfers do not
/// overlap with it.
double offload_efficiency(double intensity, BytesPerSecond bandwidth, FlopsPerSecond peak);
/// The bandwidth at which that efficiency is reached. Promise: 0 < efficiency < 1, intensity > 0.
BytesPerSecond bandwidth_for(double efficiency, double intensity, FlopsPerSecond peak);

}  // namespace troupe
