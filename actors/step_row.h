/// What a run tells about its steps: rows of metrics.jsonl and of the progress line.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/ids.h"
#include "planner/timeline.h"
#include "planner/units.h"

namespace troupe {

struct DeviceRow {
  DeviceId device;
  Seconds busy = 0;
  Bytes peak = 0;
  std::uint64_t allocations = 0;  ///< ever made in the arena
  std::uint64_t resent = 0;       ///< tensors that its links sent again in this step
};

/// One committed step. Numbers that must be comparable bit by bit are bits.
struct StepRow {
  std::uint64_t step = 0;                ///< from 1
  std::uint64_t loss_bits = 0;           ///< of a double
  std::uint64_t gradient_norm_bits = 0;  ///< of a double
  double learning_rate = 0;
  std::uint64_t tokens = 0;        ///< trained in this step
  Seconds seconds = 0;             ///< from asking for its tokens until every device was done
  std::vector<DeviceRow> devices;  ///< those that hold a stage
  std::uint64_t state_hash = 0;
  bool has_state_hash = false;
  bool skipped = false;  ///< some gradient was not finite
  double loss() const { return std::bit_cast<double>(loss_bits); }
  double gradient_norm() const { return std::bit_cast<double>(gradient_norm_bits); }
};

/// What the steps of a run took so far.
struct Observations {
  std::uint64_t steps = 0;   ///< that were counted; the first of a run is not: it touches memory
  Seconds step_seconds = 0;  ///< mean
  std::vector<DeviceRow> devices;  ///< mean busy seconds, highest peak
};

struct EvaluationRow {
  std::uint64_t step = 0;  ///< after this step
  double loss = 0;         ///< mean over tokens
  std::uint64_t tokens = 0;
};

}  // namespace troupe
