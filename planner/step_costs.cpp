#include "planner/step_costs.h"

#include <algorithm>
#include <utility>

#include "planner/memory.h"

namespace troupe {
namespace {

void add_layers(LayerSeconds& sum, const LayerSeconds& one, double count) {
  sum.forward += count * one.forward;
  sum.backward_input += count * one.backward_input;
  sum.backward_weight += count * one.backward_weight;
  sum.norm += count * one.norm;
  sum.update += count * one.update;
}

}  // namespace

const LayerProfile& ModelProfile::of(LayerKind kind) const {
  if (kind == LayerKind::embedding) return embedding;
  return kind == LayerKind::head ? head : block;
}

const LayerProfile& ModelProfile::layer(const ModelSpec& model, std::uint32_t layer) const {
  const LayerKind kind = layer_kind(model, layer);
  return kind == LayerKind::block && !blocks.empty() ? blocks.at(layer - 1) : of(kind);
}

LayerSeconds layer_seconds(const DeviceSpec& device, const LayerProfile& profile, DType compute) {
  const auto measured = device.measured.find(profile.kind);
  if (measured == device.measured.end()) return seconds_of(profile, device.rates, compute);
  LayerSeconds seconds = measured->second;
  seconds.backward_input += again_seconds(profile, seconds.forward, device.rates, compute);
  return seconds;
}

ClusterSpec carried_to(ClusterSpec cluster, const ModelProfile& at, const ModelProfile& wanted) {
  for (DeviceSpec& device : cluster.devices)
    for (auto& [kind, seconds] : device.measured)
      seconds = carried_over(seconds, at.of(kind), wanted.of(kind));
  return cluster;
}

ClusterSpec with_microbatches(ClusterSpec cluster,
                              const ModelProfile& at,
                              const ModelProfile& wanted,
                              std::uint32_t microbatch_size) {
  cluster = carried_to(std::move(cluster), at, wanted);
  for (DeviceSpec& device : cluster.devices)
    for (const auto& [kind, known] : device.measured_by_size)
      device.measured[kind] = seconds_at(known, microbatch_size);
  return cluster;
}

LayerSeconds stage_seconds(const DeviceSpec& device,
                           const ModelSpec& model,
                           const ModelProfile& profile,
                           LayerRange layers,
                           DType compute,
                           const StageRecompute& recompute) {
  LayerSeconds sum;
  if (layers.holds(0)) add_layers(sum, layer_seconds(device, profile.embedding, compute), 1);
  const std::uint32_t blocks = block_count(model, layers);
  const auto seconds_under = [&](const LayerProfile& block, Recompute policy) {
    return policy == Recompute::none ? layer_seconds(device, block, compute)
                                     : layer_seconds(device, recomputed(block, policy), compute);
  };
  if (!profile.blocks.empty()) {
    const std::uint32_t first = std::max(layers.first, 1u) - 1;
    for (std::uint32_t i = 0; i < blocks; ++i)
      add_layers(sum, seconds_under(profile.blocks.at(first + i), recompute.of(i)), 1);
  } else {
    const std::uint32_t full = std::min(recompute.full, blocks);
    const std::uint32_t selective = std::min(recompute.selective, blocks - full);
    for (const auto& [count, policy] :
         {std::pair{full, Recompute::full}, std::pair{selective, Recompute::selective},
          std::pair{blocks - full - selective, Recompute::none}})
      if (count > 0) add_layers(sum, seconds_under(profile.block, policy), count);
  }
  if (layers.holds(model.blocks + 1))
    add_layers(sum, layer_seconds(device, profile.head, compute), 1);
  return sum;
}

Seconds step_sum(const LayerSeconds& actions, std::uint32_t microbatches) {
  return microbatches * (actions.forward + actions.backward_input + actions.backward_weight) +
         actions.norm + actions.update;
}

Seconds transfer_seconds(const LinkSpec& link, double bytes) {
  return link.latency + (link.bandwidth > 0 ? bytes / link.bandwidth : 0.0);
}

Seconds transfer_seconds(const LinkSpec& link, Bytes bytes) {
  return transfer_seconds(link, static_cast<double>(bytes));
}

StepCosts step_costs(const std::vector<StagePlan>& stages,
                     const ClusterSpec& cluster,
                     const ModelSpec& model,
                     const ModelProfile& profile,
                     DType compute) {
  StepCosts costs;
  const std::size_t count = stages.size();
  costs.transfer_forward.resize(count);
  costs.transfer_backward.resize(count);
  costs.transfer_tied.resize(count);
  const auto between = [&](std::size_t from, std::size_t to, Bytes bytes) {
    if (stages[from].device == stages[to].device) return 0.0;
    return transfer_seconds(cluster.link(stages[from].device, stages[to].device), bytes);
  };
  const Bytes boundary = boundary_bytes(profile);
  for (std::size_t s = 0; s < count; ++s) {
    const DeviceSpec& device = cluster.devices.at(stages[s].device.index());
    costs.stages.push_back(
        stage_seconds(device, model, profile, stages[s].layers, compute, stages[s].recompute));
    costs.overhead.push_back(device.rates.action_overhead);
    if (s + 1 < count) costs.transfer_forward[s] = between(s, s + 1, boundary);
    if (s > 0) costs.transfer_backward[s] = between(s, s - 1, boundary);
  }
  if (model.tied && count > 1) {
    costs.transfer_tied.front() = between(0, count - 1, token_table_bytes(model));
    costs.transfer_tied.back() = between(count - 1, 0, token_table_bytes(model));
  }
  return costs;
}

}  // namespace troupe
