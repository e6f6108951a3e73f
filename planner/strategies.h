/// Named ways to place a model on a cluster, behind one interface, so that they can be compared in
/// one table.
///
///   even             as many layers on every device as on any other, in the cluster's order
///   edgepipe         the least slowest stage over all orders and choices of devices within their
///                    memory, exactly: Hu et al. 2021 ("EdgePipe", arXiv:2110.14895), with the
///                    activations in flight that training needs
///   hetpipe          virtual workers with shares of the batch: Park et al. 2020 (USENIX ATC'20)
///   memory-balanced  the stages that fill the fullest device least, as Peng et al. 2025
///                    ("DawnPiper", arXiv:2505.05856) repartition for memory: roomy devices first,
///                    where most microbatches are in flight
///   zebra            attention and experts on different devices: Wu et al. 2025 (arXiv:2504.03871)
///   expert-parallel  every device its share of the tokens and of each layer's experts, by speed
///   auto             the quickest of everything that can be priced, what does not train yet
///                    included (planner/automatic.h)
///   configured       the plan that trains: the pinned stages where there are some, else the
///   planner's
///                    own search
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/expert_plan.h"
#include "planner/joint_plan.h"
#include "planner/plan.h"
#include "planner/virtual_workers.h"

namespace troupe {

enum class Strategy : std::uint8_t {
  even,
  edgepipe,
  hetpipe,
  memory_balanced,
  zebra,
  expert_parallel,
  automatic,
  configured
};
inline constexpr Strategy all_strategies[] = {
    Strategy::configured,      Strategy::even,  Strategy::edgepipe,        Strategy::hetpipe,
    Strategy::memory_balanced, Strategy::zebra, Strategy::expert_parallel, Strategy::automatic};
std::string_view to_string(Strategy strategy);
/// Error invalid_input: no strategy has this name; says which there are.
Result<Strategy> parse_strategy(std::string_view text);

/// What is to be planned. The parts must outlive the request.
struct PlanRequest {
  const ModelSpec& model;
  const ClusterSpec& cluster;
  const ModelProfile& profile;
  const PlanOptions& options;  ///< pins are for `configured` alone
  ProfileAt profile_at = {};
};

/// What a strategy came to.
struct StrategyOutcome {
  Strategy strategy = Strategy::automatic;
  std::optional<Error> refused;  ///< set: nothing else is
  /// One pipeline, which can be trained; or replicas, or experts apart, which are priced only.
  std::optional<Plan> plan;
  std::optional<WorkerPlan> workers;
  std::optional<ExpertPlan> experts;
  std::optional<JointPlan> joint;
  Seconds step = 0;
  DeviceId slowest;  ///< the device that computes longest
  Seconds slowest_busy = 0;
  double bubble = 0;        ///< share of the step that the devices in use idle, on average
  DeviceId fullest;         ///< the device with the largest predicted peak by memory
  double memory_share = 0;  ///< that share
  std::uint32_t devices_used = 0;
};

/// `known`: what others came to for the same request, which `auto` does not ask again.
StrategyOutcome run_strategy(Strategy strategy,
                             const PlanRequest& request,
                             const std::vector<StrategyOutcome>& known = {});

/// A device that a step uses.
struct DeviceMeasure {
  DeviceId device;
  Seconds busy = 0;         ///< computing, of a step
  double memory_share = 0;  ///< predicted peak by memory
};
/// The measures of an outcome whose step is known.
void set_measures(StrategyOutcome& outcome, const std::vector<DeviceMeasure>& uses);
/// The measures of any plan, by the same rules.
StrategyOutcome measured_outcome(Strategy strategy, Plan plan, const ClusterSpec& cluster);

}  // namespace troupe
