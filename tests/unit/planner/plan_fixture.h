/// Small models, profiles and clusters with round numbers, for tests of plans.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/plan.h"

namespace troupe::testing {

inline ModelSpec small_model(std::uint32_t blocks, bool tied = false) {
  ModelSpec model;
  model.blocks = blocks;
  model.width = 64;
  model.heads = model.kv_heads = 4;
  model.ffn_width = 256;
  model.vocabulary = 256;
  model.context = 64;
  model.tied = tied;
  return model;
}

/// Work in flops alone; the head `head_weight` times a block, the embedding a hundredth.
inline ModelProfile round_profile(double head_weight = 1.0, bool tied = false) {
  const auto layer = [](LayerKind kind, double flops, Bytes weights) {
    LayerProfile profile;
    profile.kind = kind;
    profile.forward.matmul_flops = flops;
    profile.backward_input.matmul_flops = flops;
    profile.backward_weight.matmul_flops = flops;
    profile.norm.matmul_flops = flops / 100;
    profile.update.matmul_flops = flops / 50;
    profile.weight_bytes = weights;
    profile.gradient_bytes = weights;
    profile.optimizer_bytes = 2 * weights;
    profile.saved_bytes = 64 * 1024;
    profile.deferred_bytes = 16 * 1024;
    profile.forward_workspace_bytes = 4 * 1024;
    profile.backward_workspace_bytes = 8 * 1024;
    profile.update_workspace_bytes = 1024;
    profile.output_bytes = 8 * 1024;
    return profile;
  };
  ModelProfile profile;
  profile.embedding = layer(LayerKind::embedding, 1e4, 256 * 1024);
  profile.block = layer(LayerKind::block, 1e6, 128 * 1024);
  profile.head = layer(LayerKind::head, head_weight * 1e6, 256 * 1024);
  if (tied) {
    profile.head.shared_weight_bytes = 192 * 1024;
    profile.head.shared_optimizer_bytes = 384 * 1024;
  }
  return profile;
}

/// Devices of the given speeds (1 = a block forward in 1 ms), all in one process.
inline ClusterSpec cluster_of(const std::vector<double>& speeds, Bytes memory = 1_GiB) {
  ClusterSpec cluster;
  cluster.nodes.push_back({"n0", false});
  for (std::size_t d = 0; d < speeds.size(); ++d) {
    DeviceSpec device;
    device.name = "dev" + std::to_string(d);
    device.memory = memory;
    device.rates.matmul_f32 = device.rates.matmul_bf16 = speeds[d] * 1e9;
    device.rates.vector_f32 = speeds[d] * 1e9;
    device.rates.memory = 1e12;
    device.rates.action_overhead = 1e-6;
    cluster.devices.push_back(device);
  }
  cluster.same_process = {2e-6, 0};
  cluster.between_processes = {50e-6, 1e9};
  return cluster;
}

inline PlanOptions options_of(std::uint32_t microbatches,
                              ScheduleKind kind = ScheduleKind::one_f_one_b) {
  PlanOptions options;
  options.shape.microbatch_count = microbatches;
  options.shape.microbatch_size = 4;
  options.shape.batch_size = 4 * microbatches;
  options.shape.sequence_length = 64;
  options.schedule = kind;
  return options;
}

/// Stages of the given sizes on devices 0, 1, 2, ...
inline std::vector<StagePlan> stages_of(const std::vector<std::uint32_t>& sizes) {
  std::vector<StagePlan> stages;
  std::uint32_t next = 0;
  for (std::uint32_t s = 0; s < sizes.size(); ++s) {
    stages.push_back({{next, next + sizes[s]}, DeviceId{s}});
    next += sizes[s];
  }
  return stages;
}

}  // namespace troupe::testing
