/// One training step over one stage that holds all layers: the bare loop, without schedule, actor
/// or message. It is what the runtime's cost is measured against.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/stage.h"

namespace troupe {

/// What a step is given, whatever runs it.
struct StepInput {
  std::uint64_t step = 1;       ///< from 1
  std::uint64_t adam_step = 1;  ///< updates applied so far, this one included
  double learning_rate = 0;
  std::span<const MicrobatchTokens> microbatches;
};

struct StepOutcome {
  double loss = 0;  ///< sum over microbatches, in order
  double norm = 0;
  bool skipped = false;
  std::uint64_t trained_tokens = 0;
};

/// Targets that are trained (not -1), over all microbatches.
std::uint64_t trained_tokens(std::span<const MicrobatchTokens> microbatches);

/// F and B of each microbatch in turn, N, U. Allocates nothing.
StepOutcome run_step(Stage& stage, Stream& stream, const StepInput& input);

/// Mean loss per trained token of some microbatches, without training.
double evaluate_mean(Stage& stage, Stream& stream, std::span<const MicrobatchTokens> microbatches);

}  // namespace troupe
