#include "planner/memory.h"

#include <algorithm>

#include "planner/prerequisites.h"
#include "planner/stage_memory.h"

namespace troupe {

EdgeBuffers edge_buffers(StageId stage, const StageMap& stages, const ClusterSpec& cluster) {
  EdgeBuffers buffers;
  const std::uint32_t s = stage.value;
  const auto same = [&](std::uint32_t other) { return same_device(s, other, stages); };
  const auto by_reference = [&](std::uint32_t other) {
    return cluster.by_reference(stages.device_of_stage[other], stages.device_of_stage[s]);
  };
  if (s > 0) {
    buffers.input_gradient = stages.transfer_slots;
    if (!same(s - 1)) {
      if (by_reference(s - 1))
        buffers.input_gradient *= 2;
      else
        buffers.input = stages.transfer_slots;
    }
  }
  if (s + 1 < stages.stage_count() && !same(s + 1) && !by_reference(s + 1))
    buffers.output_gradient = stages.transfer_slots;
  if (other_tied_end(stage, stages)) buffers.tied_half = 1;
  return buffers;
}

Bytes boundary_bytes(const ModelProfile& profile) {
  return profile.block.output_bytes;
}

Bytes token_table_bytes(const ModelSpec& model) {
  constexpr Bytes granularity = 64;  // of an arena, devices/arena.h
  const Bytes bytes = Bytes{model.vocabulary} * model.width * size_of(DType::f32);
  return (bytes + granularity - 1) / granularity * granularity;
}

Bytes edge_bytes(const EdgeBuffers& buffers, const ModelSpec& model, const ModelProfile& profile) {
  return (Bytes{buffers.input} + buffers.output_gradient + buffers.input_gradient) *
             boundary_bytes(profile) +
         buffers.tied_half * token_table_bytes(model);
}

std::vector<MemoryPlan> memory_of(const std::vector<StagePlan>& stages,
                                  const Schedule& schedule,
                                  const ClusterSpec& cluster,
                                  const ModelSpec& model,
                                  const ModelProfile& profile) {
  std::vector<MemoryPlan> memory(cluster.devices.size());
  const auto in_flight = in_flight_per_stage(schedule);
  const auto deferred = deferred_per_stage(schedule);
  EXPECTS(stages.size() == in_flight.size());
  for (std::uint32_t s = 0; s < stages.size(); ++s) {
    const MemoryPlan one = stage_memory(model, profile, stages[s].layers, in_flight[s], deferred[s],
                                        stages[s].recompute);
    MemoryPlan& device = memory.at(stages[s].device.index());
    device.weights += one.weights;
    device.gradients += one.gradients;
    device.optimizer += one.optimizer;
    device.activations += one.activations;
    device.workspace = std::max(device.workspace, one.workspace);
    device.transfer +=
        edge_bytes(edge_buffers(StageId{s}, schedule.stages, cluster), model, profile);
  }
  return memory;
}

}  // namespace troupe
