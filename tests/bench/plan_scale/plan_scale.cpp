#include "tests/bench/plan_scale/plan_scale.h"

#include <fmt/format.h>

#include <chrono>
#include <string>
#include <vector>

#include "apps/device_catalogue.h"
#include "kernels/stage.h"
#include "planner/plan.h"
#include "tests/bench/plan_scale/long_search.h"

namespace troupe::bench {
namespace {

/// A decoder of 126 blocks: 128 layers with the embedding and the head.
ModelSpec large_model() {
  ModelSpec model;
  model.blocks = 126;
  model.width = 4096;
  model.heads = model.kv_heads = 32;
  model.ffn_width = 16384;
  model.vocabulary = 50304;
  model.context = 2048;
  model.tied = false;
  return model;
}

/// Eight kinds of the catalogue in nodes of eight alike, until `count` devices.
ClusterSpec mixed_cluster(std::uint32_t count) {
  constexpr std::size_t kinds = 8;
  std::vector<const CatalogueDevice*> rows;
  for (const char* id : {"h100_sxm5_80", "a100_sxm4_80", "a100_pcie_40", "l40s_48", "v100_sxm2_32",
                         "rtx4090_24", "rtx3090_24", "v100_pcie_16"})
    for (const CatalogueDevice& one : built_in_catalogue().accelerators)
      if (one.id == id) rows.push_back(&one);
  ClusterSpec cluster;
  for (std::uint32_t d = 0; d < count; ++d) {
    const std::uint32_t node = d / 8;
    if (d % 8 == 0) cluster.nodes.push_back({fmt::format("n{}", node), true});
    const CatalogueDevice& row = *rows.at(node % std::min(kinds, rows.size()));
    DeviceSpec device;
    device.name = fmt::format("n{}.{}.{}", node, row.id, d % 8);
    device.node = NodeId{node};
    device.memory = row.memory;
    device.rates = achievable_rates(row, 10e-6, 1);
    cluster.devices.push_back(device);
  }
  cluster.same_process = {10e-6, 25e9};
  cluster.between_processes = {30e-6, 12e9};
  return cluster;
}

struct Problem {
  ModelSpec model;
  ClusterSpec cluster;
  PlanOptions options;
  ModelProfile profile;
};

Problem problem(std::uint32_t devices, std::uint32_t microbatches) {
  Problem made;
  made.model = large_model();
  made.cluster = mixed_cluster(devices);
  made.options.shape = {microbatches, 1, 2048, microbatches, DType::f32};
  made.profile = profile_model(made.model, made.options.shape);
  return made;
}

struct TimedPlan {
  Seconds step = 0;
  std::vector<StagePlan> stages;
  double seconds = 0;
};

TimedPlan timed_plan(const Problem& given) {
  const auto begin = std::chrono::steady_clock::now();
  const auto plan = make_plan(given.model, given.cluster, given.profile, given.options);
  TimedPlan timed;
  timed.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!plan) {
    fmt::print("  {}\n", plan.error().text);
    return timed;
  }
  timed.step = plan->predicted_step;
  timed.stages = plan->stages;
  return timed;
}

}  // namespace

void planning_at_scale() {
  fmt::print(
      "planning 128 layers on mixed devices (8 kinds), one core, and annealing 100 times "
      "as long\n");
  fmt::print("  {:>7} {:>12} {:>10} {:>7} {:>10} {:>12} {:>12} {:>9}\n", "devices", "microbatches",
             "plan", "stages", "step", "annealed", "candidates", "excess");
  for (const auto& [devices, microbatches] :
       std::vector<std::pair<std::uint32_t, std::uint32_t>>{{1024, 64}, {1024, 512}, {32, 64}}) {
    const Problem given = problem(devices, microbatches);
    const TimedPlan plan = timed_plan(given);
    if (plan.stages.empty()) continue;
    const LongSearch longer = anneal(given.model, given.cluster, given.profile, given.options,
                                     plan.stages, 100 * plan.seconds, 1);
    fmt::print("  {:>7} {:>12} {:>8.2f} s {:>7} {:>10} {:>12} {:>12} {:>7.2f} %\n", devices,
               microbatches, plan.seconds, plan.stages.size(), format_seconds(plan.step),
               format_seconds(longer.step), longer.tried, 100 * (plan.step / longer.step - 1));
    std::fflush(stdout);
  }
}

void growth_of_planning() {
  fmt::print("planning time as devices double (128 layers, 64 microbatches)\n");
  fmt::print("  {:>7} {:>10} {:>7} {:>12}\n", "devices", "plan", "stages", "step");
  for (const std::uint32_t devices : {16u, 32u, 64u, 128u, 256u, 512u, 1024u}) {
    const TimedPlan plan = timed_plan(problem(devices, 64));
    if (plan.stages.empty()) continue;
    fmt::print("  {:>7} {:>8.2f} s {:>7} {:>12}\n", devices, plan.seconds, plan.stages.size(),
               format_seconds(plan.step));
  }
}

}  // namespace troupe::bench
