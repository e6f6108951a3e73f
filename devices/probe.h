/// What the processor itself can do, measured now: the yardstick that kernels are held against.
#pragma once

#include "devices/compute_pool.h"
#include "planner/units.h"

namespace troupe {

/// With all threads of the pool busy; the best of several short runs.
struct MachinePeak {
  FlopsPerSecond fma_f32 = 0;      ///< independent fused multiply-adds, widest vectors there are
  BytesPerSecond memory_read = 0;  ///< from a working set larger than the caches
  BytesPerSecond memory_copy = 0;  ///< read and written bytes together
};

/// With one thread in its processor time, with more in wall-clock time. Takes about a quarter of a
/// second and 64 MiB a thread while it runs.
MachinePeak measure_peak(ComputePool& pool);

}  // namespace troupe
