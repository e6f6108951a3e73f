/// What each stage of a pipeline computes again, where only that is open.
#pragma once

#include <optional>
#include <vector>

#include "planner/plan.h"

namespace troupe {

/// The same stages, each computing again what costs least time among what lets it fit. Nothing
/// where a stage fits with no choice, where a device holds several stages, which share its memory,
/// and under a split backward, which computes nothing again. What the stages compute again so far
/// plays no part.
std::optional<std::vector<StagePlan>> recompute_by_stage(std::vector<StagePlan> stages,
                                                         const ModelSpec& model,
                                                         const ClusterSpec& cluster,
                                                         const ModelProfile& profile,
                                                         const PlanOptions& options);

/// Whether any block of the stages computes again.
bool computes_again(const std::vector<StagePlan>& stages);
/// The policy that all blocks of the stages share; nothing where they differ.
std::optional<Recompute> common_policy(const std::vector<StagePlan>& stages,
                                       const ModelSpec& model);

}  // namespace troupe
