/// Vector code on each instruction set that this processor and the build have.
#pragma once

#include "kernels/cpu/targets.h"

// Apart: it wants the line above first.
#include <hwy/highway.h>

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::test {

struct VectorTarget {
  std::int64_t bit = 0;
  std::string name;
  /// It multiplies and adds in one rounding; all such have the same bits.
  bool fused = false;
};

/// Best first.
inline std::vector<VectorTarget> vector_targets() {
  std::vector<VectorTarget> targets;
  for (const std::int64_t bit : hwy::SupportedAndGeneratedTargets())
    targets.push_back(
        {bit, hwy::TargetName(bit), (bit & (HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL)) != 0});
  return targets;
}

/// While it lives, vector code runs on one instruction set alone.
class OnlyTarget {
 public:
  explicit OnlyTarget(const VectorTarget& target) {
    hwy::SetSupportedTargetsForTest(target.bit);
    hwy::GetChosenTarget().Update(target.bit);
  }
  ~OnlyTarget() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  OnlyTarget(const OnlyTarget&) = delete;
  OnlyTarget& operator=(const OnlyTarget&) = delete;
};

}  // namespace troupe::test
