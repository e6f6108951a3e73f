#include "planner/expert_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "planner/device_kinds.h"
#include "planner/plan_checks.h"
#include "planner/step_costs.h"

namespace troupe {
namespace {

/// What no device could hold is counted as this much.
constexpr double most_pieces = 1e9;

double state_of(const LayerProfile& layer) {
  return static_cast<double>(layer.weight_bytes + layer.gradient_bytes + layer.optimizer_bytes);
}

Status check_rated(const ClusterSpec& cluster, DType compute) {
  for (const DeviceSpec& device : cluster.devices) {
    const DeviceRates& rates = device.rates;
    const double products = compute == DType::bf16 ? rates.matmul_bf16 : rates.matmul_f32;
    if (!(products > 0 && rates.vector_f32 > 0 && rates.memory > 0))
      return Error{ErrorCode::invalid_input,
                   fmt::format("plan: device {} has measured layers alone, and experts are priced "
                               "apart from their layers; give it rates, or leave it out",
                               device.name)};
  }
  return {};
}

/// A block without its experts.
LayerProfile without(LayerProfile block, const ExpertPart& part) {
  block.forward = block.forward - part.forward;
  block.backward_input = block.backward_input - part.backward_input;
  block.backward_weight = block.backward_weight - part.backward_weight;
  for (std::uint32_t expert = 0; expert < part.experts; ++expert) {
    block.norm = block.norm - part.norm;
    block.update = block.update - part.update;
  }
  block.saved_bytes -= std::min(block.saved_bytes, part.kept_bytes);
  block.backward_workspace_bytes -= std::min(block.backward_workspace_bytes, part.workspace_bytes);
  return block;
}

/// Layers without their experts, by where they stand.
struct DenseLayers {
  std::vector<LayerProfile> in_layers;  ///< blocks with experts and those between them
  std::vector<LayerProfile> once;
  double state = 0, gradient = 0;  ///< with the experts' still in it
};

DenseLayers dense_layers(const PlanRequest& request) {
  const ExpertPart& part = *request.profile.experts;
  DenseLayers out;
  for (std::uint32_t l = 0; l < layer_count(request.model); ++l) {
    const LayerProfile& layer = request.profile.layer(request.model, l);
    out.state += state_of(layer);
    out.gradient += static_cast<double>(layer.gradient_bytes);
    const bool block = layer_kind(request.model, l) == LayerKind::block;
    if (block && std::binary_search(part.blocks.begin(), part.blocks.end(), l - 1))
      out.in_layers.push_back(without(layer, part));
    else if (block && l - 1 > part.blocks.front())
      out.in_layers.push_back(layer);
    else
      out.once.push_back(layer);
  }
  // Embedding and head are on the same devices.
  const LayerProfile& head = request.profile.head;
  out.state -= static_cast<double>(head.shared_weight_bytes + head.shared_optimizer_bytes);
  return out;
}

/// Of one sequence, `divided` by the layers with experts.
WaySeconds seconds_of_layers(const std::vector<LayerProfile>& layers,
                             const DeviceRates& rates,
                             const StepShape& shape,
                             double divided) {
  WaySeconds out;
  for (const LayerProfile& layer : layers) {
    const LayerSeconds one = seconds_of(layer, rates, shape.compute);
    out.forward += one.forward;
    out.backward += one.backward_input + one.backward_weight;
  }
  out.forward /= divided * shape.microbatch_size;
  out.backward /= divided * shape.microbatch_size;
  return out;
}

ExpertKindCosts kind_costs(const DenseLayers& dense,
                           const ExpertPart& part,
                           const DeviceRates& rates,
                           const StepShape& shape) {
  ExpertKindCosts out;
  out.layer =
      seconds_of_layers(dense.in_layers, rates, shape, static_cast<double>(part.blocks.size()));
  out.once = seconds_of_layers(dense.once, rates, shape, 1);
  for (const auto* layers : {&dense.in_layers, &dense.once})
    for (const LayerProfile& layer : *layers) {
      const LayerSeconds one = seconds_of(layer, rates, shape.compute);
      out.update += one.norm + one.update;
    }
  out.expert_update =
      seconds_of(part.norm, rates, DType::f32) + seconds_of(part.update, rates, DType::f32);
  return out;
}

std::uint32_t whole_pieces(double room, double each) {
  if (room < 0) return 0;
  return static_cast<std::uint32_t>(std::min(std::floor(room / std::max(each, 1.0)), most_pieces));
}

double one_expert(const ExpertCosts& costs, const ExpertRound& round) {
  return costs.expert_state +
         double{1} * round.held * round.sequences * costs.expert_kept / costs.experts;
}

double scratch(const ExpertCosts& costs, const ExpertRound& round) {
  return round.sequences * costs.expert_workspace / costs.experts;
}

}  // namespace

Result<ExpertCosts> expert_costs(const PlanRequest& request) {
  EXPECTS(request.profile.experts && !request.profile.experts->blocks.empty());
  TROUPE_TRY(check_request(request.model, request.cluster, request.options));
  const StepShape& shape = request.options.shape;
  TROUPE_TRY(check_rated(request.cluster, shape.compute));
  const ExpertPart& part = *request.profile.experts;
  const DenseLayers dense = dense_layers(request);
  ExpertCosts out;
  out.layers = static_cast<std::uint32_t>(part.blocks.size());
  out.experts = part.experts;
  out.batch = std::max(shape.batch_size, 1u);
  out.kind = device_kinds(request.cluster);
  for (std::uint32_t d = 0; d < out.kind.size(); ++d) {
    out.memory.push_back(static_cast<double>(request.cluster.devices[d].memory));
    if (out.kind[d] < out.example.size()) continue;
    out.example.push_back(d);
    out.kinds.push_back(kind_costs(dense, part, request.cluster.devices[d].rates, shape));
  }
  const double all = static_cast<double>(out.layers) * out.experts;
  out.dense_state = dense.state - all * static_cast<double>(part.state_bytes);
  out.dense_gradient = dense.gradient - all * static_cast<double>(part.gradient_bytes);
  for (const auto* layers : {&dense.in_layers, &dense.once})
    for (const LayerProfile& layer : *layers) {
      out.dense_kept += static_cast<double>(layer.saved_bytes) / shape.microbatch_size;
      out.dense_workspace = std::max(out.dense_workspace,
                                     static_cast<double>(std::max({layer.forward_workspace_bytes,
                                                                   layer.backward_workspace_bytes,
                                                                   layer.update_workspace_bytes})));
    }
  out.exchange = static_cast<double>(part.exchange_bytes) / shape.microbatch_size;
  out.expert_state = static_cast<double>(part.state_bytes);
  out.expert_kept = static_cast<double>(part.kept_bytes) / shape.microbatch_size;
  out.expert_workspace = static_cast<double>(part.workspace_bytes) / shape.microbatch_size;
  return out;
}

std::vector<WaySeconds> expert_seconds(const PlanRequest& request,
                                       const ExpertCosts& costs,
                                       std::uint32_t sequences) {
  StepShape shape = request.options.shape;
  const double times =
      request.profile_at ? 1 : static_cast<double>(sequences) / shape.microbatch_size;
  shape.microbatch_size = sequences;
  shape.microbatch_count = (costs.batch + sequences - 1) / sequences;
  const ModelProfile counted = request.profile_at ? request.profile_at(shape) : request.profile;
  EXPECTS(counted.experts);
  const ExpertPart& part = *counted.experts;
  std::vector<WaySeconds> out;
  for (const std::uint32_t example : costs.example) {
    const DeviceRates& rates = request.cluster.devices[example].rates;
    const auto seconds = [&](const OpCount& count) {
      return times * seconds_of(count, rates, shape.compute);
    };
    out.push_back(
        {seconds(part.forward), seconds(part.backward_input) + seconds(part.backward_weight)});
  }
  return out;
}

double dense_bytes(const ExpertCosts& costs, const ExpertRound& round, std::uint32_t sequences) {
  if (sequences == 0) return 0;
  // Rows to the experts and from them.
  const double each = round.held * costs.dense_kept + 2 * costs.exchange;
  return costs.dense_state + costs.dense_workspace + sequences * each;
}

double expert_bytes(const ExpertCosts& costs,
                    const ExpertRound& round,
                    std::uint32_t experts,
                    std::uint32_t most_of_layer) {
  return experts * one_expert(costs, round) + most_of_layer * scratch(costs, round);
}

std::uint32_t sequences_in(const ExpertCosts& costs, const ExpertRound& round, double room) {
  return whole_pieces(room - costs.dense_state - costs.dense_workspace,
                      round.held * costs.dense_kept + 2 * costs.exchange);
}

std::uint32_t experts_in(const ExpertCosts& costs, const ExpertRound& round, double room) {
  return whole_pieces(room, costs.layers * one_expert(costs, round) + scratch(costs, round));
}

std::vector<std::uint32_t> round_sizes(std::uint32_t batch, std::uint32_t most) {
  std::set<std::uint32_t> sizes{1};
  if (batch <= most) {
    for (std::uint32_t size = 1; size <= batch; ++size) sizes.insert(size);
  } else {
    const auto of = [batch](std::uint64_t rounds) {
      return static_cast<std::uint32_t>((batch + rounds - 1) / rounds);
    };
    for (std::uint64_t rounds = 1; rounds <= batch && sizes.size() + 1 < most; rounds *= 2)
      sizes.insert(of(rounds));
    for (std::uint64_t rounds = 3; rounds <= batch && sizes.size() < most; ++rounds)
      sizes.insert(of(rounds));
  }
  return {sizes.begin(), sizes.end()};
}

std::vector<std::vector<std::uint32_t>> shares_of_pieces(std::uint32_t pieces,
                                                         const std::vector<ExpertHost>& hosts) {
  constexpr std::size_t few = 8;
  std::vector<std::size_t> quickest;
  for (std::size_t h = 0; h < hosts.size(); ++h)
    if (hosts[h].most > 0) quickest.push_back(h);
  std::stable_sort(quickest.begin(), quickest.end(), [&](std::size_t a, std::size_t b) {
    return hosts[a].seconds_per_load < hosts[b].seconds_per_load;
  });
  const std::size_t fewest = quickest.size() <= few ? 1 : quickest.size();
  std::vector<std::vector<std::uint32_t>> out;
  for (std::size_t members = quickest.size(); members >= fewest && members > 0; --members) {
    std::vector<ExpertHost> some(hosts.size(), {1, 0});
    for (std::size_t m = 0; m < members; ++m) some[quickest[m]] = hosts[quickest[m]];
    for (bool fits = true; fits;) {
      auto counts = expert_counts(pieces, some);
      fits = counts.ok();
      if (!fits) break;
      const std::uint32_t most = *std::max_element(counts->begin(), counts->end());
      if (std::find(out.begin(), out.end(), *counts) == out.end())
        out.push_back(std::move(*counts));
      for (ExpertHost& host : some) host.most = std::min(host.most, most - 1);
    }
  }
  return out;
}

std::vector<LinkSpec> links_between(const ClusterSpec& cluster,
                                    const std::vector<bool>& from,
                                    const std::vector<bool>& to) {
  // Nodes without a process of their own are all in one.
  const auto process = [&](std::size_t device) {
    const NodeId node = cluster.devices[device].node;
    return cluster.nodes[node.index()].own_process ? node.index() + 1 : std::size_t{0};
  };
  std::set<std::size_t> senders, receivers;
  for (std::size_t d = 0; d < from.size(); ++d) {
    if (from[d]) senders.insert(process(d));
    if (to[d]) receivers.insert(process(d));
  }
  bool within = false, between = false;
  for (const std::size_t sender : senders)
    for (const std::size_t receiver : receivers) (sender == receiver ? within : between) = true;
  std::vector<LinkSpec> out;
  if (within) out.push_back(cluster.same_process);
  if (between) out.push_back(cluster.between_processes);
  for (const auto& [ends, link] : cluster.overrides)
    if (from[ends.first] && to[ends.second]) out.push_back(link);
  return out;
}

Seconds slowest_transfer(const std::vector<LinkSpec>& links, double bytes) {
  Seconds slowest = 0;
  for (const LinkSpec& link : links) slowest = std::max(slowest, transfer_seconds(link, bytes));
  return slowest;
}

Seconds ring_sum(const ClusterSpec& cluster, const std::vector<bool>& members, double bytes) {
  const auto count = std::count(members.begin(), members.end(), true);
  if (count < 2) return 0;
  const auto size = static_cast<double>(count);
  return 2 * (size - 1) * slowest_transfer(links_between(cluster, members, members), bytes / size);
}

bool ExpertDevice::holds_experts() const {
  return std::any_of(experts.begin(), experts.end(), [](std::uint32_t count) { return count > 0; });
}

StrategyOutcome expert_outcome(Strategy strategy, ExpertPlan plan, const ExpertCosts& costs) {
  StrategyOutcome outcome;
  outcome.strategy = strategy;
  outcome.step = plan.step;
  std::vector<DeviceMeasure> uses;
  for (std::uint32_t d = 0; d < plan.devices.size(); ++d) {
    const ExpertDevice& device = plan.devices[d];
    if (device.used())
      uses.push_back(
          {DeviceId{d}, device.busy, static_cast<double>(device.bytes) / costs.memory[d]});
  }
  set_measures(outcome, uses);
  outcome.bubble = std::max(0.0, outcome.bubble);
  outcome.experts = std::move(plan);
  return outcome;
}

}  // namespace troupe
