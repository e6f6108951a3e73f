/// Everything that can be priced of a step of pipelines, chosen together: which devices form a
/// replica, its share of the microbatches, the order of its devices, layers by stage, blocks that
/// compute again, where the states of each stage lie and, where that is open, how a step is cut
/// into microbatches. Replicas follow Park et al. 2020 ("HetPipe", USENIX ATC'20), stages Zhu et
/// al. 2025 ("Mist", EuroSys'25). Under 1F1B. What is chosen does not train yet, but for one
/// replica whose states all lie on its devices.
#pragma once

#include <optional>
#include <vector>

#include "planner/chosen_pipeline.h"

namespace troupe {

struct JointReplica {
  ChosenPipeline pipeline;
  std::uint32_t microbatches = 0;  ///< of the step
  Seconds step = 0;                ///< its own, without the exchange
};

struct JointPlan {
  StepShape shape;
  std::vector<JointReplica> replicas;
  Seconds exchange = 0;       ///< of gradients between replicas (virtual_workers.h), beside nothing
  Seconds step = 0;           ///< the slowest replica and the exchange
  std::size_t groupings = 0;  ///< ways to divide the devices that were looked at
  bool exact = false;         ///< these were all, and all pipelines are exact
  Seconds runner_up = 0;      ///< of the best of another grouping or shape; 0: there is none
  /// One pipeline that the actors can train as it stands.
  bool trains() const;
};

/// The best plan. All groupings of up to five devices are looked at; of more, devices are divided
/// by node, by kind, by speed and evenly, into 1, 2, 4, ... replicas. Nothing where none fits.
/// Promise: the request was checked.
std::optional<JointPlan> joint_plan(const ModelSpec& model,
                                    const ClusterSpec& cluster,
                                    const ModelProfile& profile,
                                    const PlanOptions& options,
                                    const ProfileAt& profile_at = {},
                                    StageFreedom freedom = {});

/// The cluster of these devices alone, in this order, with their shares of host memory and disks.
ClusterSpec part_of(const ClusterSpec& cluster, const std::vector<std::uint32_t>& members);

}  // namespace troupe
