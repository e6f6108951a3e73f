/// Where the tokens of a run come from. The same on every node: a batch is a function of the step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "actors/data/batches.h"
#include "actors/run_spec.h"
#include "planner/result.h"

namespace troupe {

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  /// Steps count from 1. The microbatches of `StepShape`, in order.
  virtual TokenBatch batch_for_step(std::uint64_t step) = 0;
  /// The fixed validation batches.
  virtual std::vector<TokenBatch> validation_batches() = 0;
  /// Equal where all batches are, for the same seed and batch size (Dataset::fingerprint).
  virtual std::uint64_t fingerprint() const = 0;
};

/// The token files that the run names.
Result<std::shared_ptr<TokenSource>> open_token_source(const RunSpec& spec);

}  // namespace troupe
