/// What the configuration leaves open of a step, chosen by planning every choice: microbatches,
/// schedule, and whether activations are kept or computed again.
#pragma once

#include <optional>
#include <vector>

#include "planner/strategies.h"

namespace troupe {

/// What may be chosen; the rest stays as the request has it.
struct OpenChoices {
  bool microbatches = false;
  bool schedule = false;
  bool recompute = false;
};

struct StepChoice {
  StepShape shape;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  std::uint32_t chunks = 1;
  /// Activations are computed again: by all blocks, but under 1F1B only by as many of each stage
  /// as its memory asks for.
  bool recompute = false;
  std::vector<StageRecompute> again;  ///< under 1F1B, by stage
  std::optional<Seconds> step;        ///< none: does not fit
};

/// Every choice, the quickest first, those that do not fit last. Microbatch sizes are the powers of
/// two up to the batch and the batch itself; schedules are all kinds, interleaved with 2 chunks.
/// Measured times of devices are for the request's shape; with_microbatches makes those of others.
/// Without `request.profile_at` the shape stays. A split backward (zero-bubble H1) computes nothing
/// again.
std::vector<StepChoice> step_choices(const PlanRequest& request, const OpenChoices& open);

}  // namespace troupe
