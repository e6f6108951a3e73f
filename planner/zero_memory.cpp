#include "planner/zero_memory.h"

#include <algorithm>

namespace troupe {
namespace {

/// DeepSpeed's additional_buffer_factor.
constexpr double buffer_factor = 1.5;

/// Python's int() of a product that was formed in double.
Bytes cut_off(double bytes) {
  return static_cast<Bytes>(bytes);
}

Bytes& part_of(PlacedState& placed, StateTier tier, Bytes StateMemory::*part) {
  switch (tier) {
    case StateTier::device: return placed.device.*part;
    case StateTier::host: return placed.host.*part;
    case StateTier::disk: return placed.disk.*part;
  }
  return placed.device.*part;
}

}  // namespace

StateMemory state_memory(std::uint64_t parameters,
                         ZeroStage stage,
                         std::uint64_t replicas,
                         const StateBytes& bytes) {
  EXPECTS(replicas > 0);
  const std::uint64_t share = parameters / replicas + (parameters % replicas == 0 ? 0 : 1);
  const auto held = [&](ZeroStage sharded_from) {
    return stage >= sharded_from ? share : parameters;
  };
  return {held(ZeroStage::parameters) * bytes.parameter,
          held(ZeroStage::gradients) * bytes.gradient,
          held(ZeroStage::optimizer) * bytes.optimizer};
}

PlacedState placed_state(const StateMemory& of_device,
                         std::uint64_t devices_per_node,
                         const StatePlacement& placement) {
  PlacedState placed;
  const auto place = [&](StateTier tier, Bytes StateMemory::*part) {
    const std::uint64_t copies = tier == StateTier::device ? 1 : devices_per_node;
    part_of(placed, tier, part) += copies * (of_device.*part);
  };
  place(placement.parameters, &StateMemory::parameters);
  place(placement.gradients, &StateMemory::gradients);
  place(placement.optimizer, &StateMemory::optimizer);
  return placed;
}

EstimatedMemory deepspeed_zero2_estimate(const EstimatorRequest& request) {
  const std::uint64_t devices = request.devices_per_node * request.nodes;
  EXPECTS(devices > 0);
  const std::uint64_t all = request.parameters;
  EstimatedMemory memory;
  if (request.offload_optimizer) {
    memory.device = 2 * all;
    memory.host = cut_off(static_cast<double>(all * std::max<std::uint64_t>(4 * devices, 16)) *
                          buffer_factor);
  } else {
    memory.device = 4 * all + 16 * all / devices;
    memory.host = cut_off(static_cast<double>(all * 4 * request.devices_per_node) * buffer_factor);
  }
  return memory;
}

EstimatedMemory deepspeed_zero3_estimate(const EstimatorRequest& request) {
  const std::uint64_t devices = request.devices_per_node * request.nodes;
  EXPECTS(devices > 0);
  const auto all = static_cast<double>(request.parameters);
  const auto copies = static_cast<double>(4 * request.devices_per_node);  // one fp32 load a device
  const double share = 1.0 / static_cast<double>(request.nodes);
  EstimatedMemory memory;
  memory.largest_layer = 4 * request.largest_layer;
  memory.device = memory.largest_layer;
  double host = 0;
  if (request.offload_optimizer) {
    const double bytes = request.offload_parameters ? 18 : 16;
    if (!request.offload_parameters) memory.device += 2 * request.parameters / devices;
    host = all * (request.sharded_start ? bytes * share : std::max(copies, bytes * share));
  } else {
    memory.device += 18 * request.parameters / devices;
    host = (request.sharded_start ? static_cast<double>(request.largest_layer) : all) * copies;
  }
  memory.host = cut_off(host * buffer_factor);
  return memory;
}

std::uint64_t block_parameters(const TransformerShape& shape) {
  return 12 * shape.layers * shape.hidden * shape.hidden;
}

Bytes activation_working_bytes(const TransformerShape& shape,
                               std::uint64_t batch,
                               std::uint64_t interval) {
  return batch * shape.sequence * interval * (16 * shape.hidden + 2 * shape.heads * shape.sequence);
}

Bytes activation_bytes(const TransformerShape& shape, std::uint64_t batch) {
  return activation_working_bytes(shape, batch, shape.layers);
}

Bytes checkpoint_bytes(const TransformerShape& shape, std::uint64_t batch, std::uint64_t interval) {
  EXPECTS(interval > 0);
  return 2 * batch * shape.sequence * shape.hidden * shape.layers / interval;
}

Bytes largest_operator_bytes(const TransformerShape& shape) {
  return 4 * shape.hidden * 4 * shape.hidden;
}

double arithmetic_intensity(TravellingState state,
                            const TransformerShape& shape,
                            double batch,
                            std::uint64_t interval) {
  switch (state) {
    case TravellingState::parameters_and_gradients:
      return static_cast<double>(shape.sequence) * batch;
    case TravellingState::optimizer: return static_cast<double>(shape.sequence) * batch / 4;
    case TravellingState::checkpoints:
      return 24.0 * static_cast<double>(shape.hidden) * static_cast<double>(interval);
  }
  return 0;
}

double offload_efficiency(double intensity, BytesPerSecond bandwidth, FlopsPerSecond peak) {
  const double fed = intensity * bandwidth;
  return fed / (fed + peak);
}

BytesPerSecond bandwidth_for(double efficiency, double intensity, FlopsPerSecond peak) {
  EXPECTS(efficiency > 0 && efficiency < 1 && intensity > 0);
  return efficiency * peak / ((1 - efficiency) * intensity);
}

}  // namespace troupe
