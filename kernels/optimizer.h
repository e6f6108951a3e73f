/// Optimizer and learning-rate schedules: pure functions of the step number, so that a resumed run
/// continues exactly where an uninterrupted one would be.
#pragma once

#include <cstdint>

#include "planner/result.h"

namespace troupe {

enum class LearningRateShape : std::uint8_t { constant, linear, cosine };

/// Warm-up rises linearly from learning_rate / warmup_steps at step 1 to learning_rate at step
/// warmup_steps; then constant, or falling to minimum at `total_steps`, linearly or as a half
/// cosine.
struct LearningRateSpec {
  LearningRateShape shape = LearningRateShape::cosine;
  double learning_rate = 1e-3;
  double minimum = 0;
  std::uint64_t warmup_steps = 0;
  std::uint64_t total_steps = 1;
};

/// Steps count from 1. Beyond total_steps: the minimum.
double learning_rate_at(const LearningRateSpec& spec, std::uint64_t step);

/// AdamW, decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2), bias correction as
/// PyTorch.
struct AdamWSpec {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  ///< of ParameterSpec::decays tensors only
  double clip_norm = 1.0;      ///< 0: no clipping
};

}  // namespace troupe
