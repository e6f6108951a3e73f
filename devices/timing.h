/// How long something takes: several runs, from which the caller takes the best or the middle one.
#pragma once

#include <algorithm>
#include <vector>

#include "planner/units.h"

namespace troupe {

/// Seconds of `runs` calls of `f` by `clock`, shortest first, after one call that warms up. None is
/// shorter than a nanosecond, so that they can be divided by. Requires runs >= 1.
template <class F>
std::vector<Seconds> sorted_seconds(int runs, Seconds (*clock)(), F&& f) {
  std::vector<Seconds> seconds;
  f();
  for (int i = 0; i < runs; ++i) {
    const Seconds begin = clock();
    f();
    seconds.push_back(std::max(clock() - begin, 1e-9));
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

/// The middle one of an odd number of runs, the upper of the middle two of an even one.
inline Seconds median(const std::vector<Seconds>& sorted) {
  return sorted[sorted.size() / 2];
}

/// Repeated measurements differ by more than 20 %: from the quarter of the shortest runs to the
/// quarter of the longest.
inline bool is_unsteady(const std::vector<Seconds>& sorted) {
  const std::size_t n = sorted.size();
  return sorted[n - 1 - n / 4] - sorted[n / 4] > 0.2 * median(sorted);
}

}  // namespace troupe
