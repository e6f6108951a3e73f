#include "kernels/optimizer.h"

#include <algorithm>
#include <cmath>

namespace troupe {

double learning_rate_at(const LearningRateSpec& spec, std::uint64_t step) {
  constexpr double pi = 3.14159265358979323846;
  const auto now = static_cast<double>(step);
  const auto warmup = static_cast<double>(spec.warmup_steps);
  if (step < spec.warmup_steps) return spec.learning_rate * now / warmup;
  if (spec.shape == LearningRateShape::constant) return spec.learning_rate;
  if (step >= spec.total_steps) return spec.minimum;
  const double progress =
      std::max(0.0, (now - warmup) / (static_cast<double>(spec.total_steps) - warmup));
  const double share = spec.shape == LearningRateShape::linear
                           ? 1.0 - progress
                           : 0.5 * (1.0 + std::cos(pi * progress));
  return spec.minimum + (spec.learning_rate - spec.minimum) * share;
}

}  // namespace troupe
