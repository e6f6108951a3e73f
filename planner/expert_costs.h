/// What models with experts cost on unlike devices: seconds and bytes that zebra and expert
/// parallelism share. Internal to planner/expert_strategy.h.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/expert_placement.h"
#include "planner/expert_plan.h"
#include "planner/strategies.h"

namespace troupe {

struct WaySeconds {
  Seconds forward = 0, backward = 0;
  Seconds sum() const { return forward + backward; }
};

/// On one kind of device.
struct ExpertKindCosts {
  /// One sequence through what is dense in a layer with experts; dense blocks between such layers
  /// count with the mean.
  WaySeconds layer;
  /// One sequence through everything else: embedding, dense blocks before the first experts, head.
  WaySeconds once;
  Seconds update = 0;         ///< norm and optimizer of all that is dense
  Seconds expert_update = 0;  ///< of one expert
};

struct ExpertCosts {
  std::uint32_t layers = 1;            ///< with experts
  std::uint32_t experts = 1;           ///< of a layer
  std::uint32_t batch = 1;             ///< sequences of a step
  std::vector<std::uint32_t> kind;     ///< by device
  std::vector<std::uint32_t> example;  ///< by kind: its first device
  std::vector<ExpertKindCosts> kinds;  ///< by kind
  std::vector<double> memory;          ///< bytes by device
  double dense_state = 0;              ///< bytes of all that is dense
  double dense_gradient = 0;           ///< among them
  double dense_workspace = 0;          ///< of one microbatch: its sequences go one by one
  double dense_kept = 0;               ///< one sequence, all layers, from forward to backward
  double exchange = 0;                 ///< one sequence, one layer, one direction
  double expert_state = 0;             ///< one expert of one layer
  double expert_kept = 0;              ///< one sequence, all experts of a layer
  double expert_workspace = 0;         ///< likewise
  Seconds attention_seconds(std::uint32_t device) const {
    const ExpertKindCosts& one = kinds[kind[device]];
    return layers * one.layer.sum() + one.once.sum();
  }
  std::size_t devices() const { return kind.size(); }
};

/// A round: its sequences, and how many rounds are in memory at once.
struct ExpertRound {
  std::uint32_t sequences = 1, held = 1;
  std::vector<WaySeconds> experts;  ///< by kind: all experts of a layer, all sequences
};

/// Errors: as check_request; invalid_input for devices without rates.
/// Promise: the profile says what the experts are.
Result<ExpertCosts> expert_costs(const PlanRequest& request);

/// By kind. See planner/expert_strategy.h for where they come from.
std::vector<WaySeconds> expert_seconds(const PlanRequest& request,
                                       const ExpertCosts& costs,
                                       std::uint32_t sequences);

/// Bytes of a device with so many sequences of a round and so many experts, of all layers together
/// and in the layer that has most.
double dense_bytes(const ExpertCosts& costs, const ExpertRound& round, std::uint32_t sequences);
double expert_bytes(const ExpertCosts& costs,
                    const ExpertRound& round,
                    std::uint32_t experts,
                    std::uint32_t most_of_layer);
/// Sequences of a round that fit into `room` bytes.
std::uint32_t sequences_in(const ExpertCosts& costs, const ExpertRound& round, double room);
/// Experts of a layer, the same in every layer, that fit into `room` bytes.
std::uint32_t experts_in(const ExpertCosts& costs, const ExpertRound& round, double room);

/// Sizes of rounds worth trying, rising, at most `most` of them: all, or those that cut the batch
/// into different numbers of rounds.
std::vector<std::uint32_t> round_sizes(std::uint32_t batch, std::uint32_t most);

/// Ways to share out equal pieces: the one whose busiest host has least to do, then with ever fewer
/// pieces at most on one host, down to equal shares; then the same on the quickest hosts alone, if
/// there are few. Empty where they do not fit.
std::vector<std::vector<std::uint32_t>> shares_of_pieces(std::uint32_t pieces,
                                                         const std::vector<ExpertHost>& hosts);

/// The links from devices of `from` to others of `to`, each sort once.
std::vector<LinkSpec> links_between(const ClusterSpec& cluster,
                                    const std::vector<bool>& from,
                                    const std::vector<bool>& to);
/// Of so many bytes over the slowest of these links.
Seconds slowest_transfer(const std::vector<LinkSpec>& links, double bytes);
/// The sum of gradients round a ring of these devices.
Seconds ring_sum(const ClusterSpec& cluster, const std::vector<bool>& members, double bytes);

/// The quickest plan within costs.memory, if any fits.
std::optional<ExpertPlan> best_expert_parallel(const PlanRequest& request,
                                               const ExpertCosts& costs);
std::optional<ExpertPlan> best_zebra(const PlanRequest& request, const ExpertCosts& costs);

/// Measures of a plan whose devices are filled in.
StrategyOutcome expert_outcome(Strategy strategy, ExpertPlan plan, const ExpertCosts& costs);

}  // namespace troupe
