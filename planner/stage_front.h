/// Time against memory of one stage where blocks may compute their activations again: the front
/// from which Zhu et al. 2025 ("Mist", EuroSys'25) pick one point a stage. Every block that
/// computes again takes one more forward a microbatch and leaves its output alone in flight, so
/// that the front is a straight line of as many points as the stage has blocks; under a cap the
/// point with the fewest such blocks that fits is the best one.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/plan.h"

namespace troupe {

class StageFront {
 public:
  StageFront(const ModelSpec& model,
             const ClusterSpec& cluster,
             const ModelProfile& profile,
             DType compute);

  /// The fewest blocks of layers [first, last) that compute again, so that `bytes`, what the stage
  /// takes with `in_flight` microbatches and none, come down to `room`. Nothing where none do.
  std::optional<std::uint32_t> fewest(Bytes bytes,
                                      Bytes room,
                                      std::uint32_t in_flight,
                                      std::uint32_t first,
                                      std::uint32_t last) const;
  /// One block's forward, on a device.
  Seconds seconds(std::uint32_t device) const { return seconds_.at(device); }

 private:
  std::uint32_t blocks_ = 0;
  Bytes saved_ = 0;  ///< less in flight for each such block
  Bytes extra_ = 0;  ///< more workspace as soon as there is one
  std::vector<Seconds> seconds_;
};

/// A pipeline under 1F1B whose stages compute again as many blocks as their memory asks for.
struct RecomputedPipeline {
  std::vector<StagePlan> stages;
  std::vector<std::uint32_t> again;  ///< by stage: blocks that compute again
  Seconds step = 0;
};

/// The best found by joining the stages' fronts (pipeline_fill.h); nothing where none fits.
std::optional<RecomputedPipeline> recomputed_pipeline(const ModelSpec& model,
                                                      const ClusterSpec& cluster,
                                                      const ModelProfile& profile,
                                                      const PlanOptions& options);

}  // namespace troupe
