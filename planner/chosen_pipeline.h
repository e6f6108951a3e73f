/// One pipeline under 1F1B whose stages choose what they compute again and where their states lie.
#pragma once

#include <optional>
#include <vector>

#include "planner/stage_points.h"

namespace troupe {

struct ChosenPipeline {
  std::vector<StagePlan> stages;   ///< with what the points compute again
  std::vector<StagePoint> points;  ///< by stage
  Seconds step = 0;
  bool exact = false;          ///< no order, cut or choice is quicker
  std::size_t candidates = 0;  ///< orders and cuts of which some choice fits
};

/// The quickest pipeline: all orders, cuts and points of the stages' fronts where these are few,
/// else pipelines that pipeline_fill.h proposes. Options' schedule and pins play no part. Nothing
/// where none fits. Promise: at least one device and layer.
std::optional<ChosenPipeline> choose_pipeline(const ModelSpec& model,
                                              const ClusterSpec& cluster,
                                              const ModelProfile& profile,
                                              const PlanOptions& options,
                                              StageFreedom freedom);

/// The same without looking at all: the quickest of what pipeline_fill.h proposes.
std::optional<ChosenPipeline> propose_pipeline(const ModelSpec& model,
                                               const ClusterSpec& cluster,
                                               const ModelProfile& profile,
                                               const PlanOptions& options,
                                               StageFreedom freedom);

/// The step of the same stages with another number of microbatches, at most as many in flight.
/// Promise: microbatches > 0.
Seconds step_with(const ChosenPipeline& pipeline,
                  const ModelSpec& model,
                  const ClusterSpec& cluster,
                  const ModelProfile& profile,
                  const PlanOptions& options,
                  std::uint32_t microbatches);

}  // namespace troupe
