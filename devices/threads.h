/// Small helpers for threads that compute: pinning, and keeping library teams from starting.
#pragma once

#include "planner/units.h"

namespace troupe {

/// Pins the calling thread. False where the system refuses (a core outside its cpuset): the thread
/// then runs unpinned, which is slower and never wrong.
bool pin_this_thread(int core);

/// One thread per library call for the calling thread, where an OpenMP runtime is loaded at all.
void keep_libraries_single_threaded();

/// The monotonic clock that WorkTimes are in.
Seconds monotonic_seconds();

/// Processor time of the calling thread: what other programs on its core do not disturb.
Seconds thread_seconds();

/// Sleeps until the monotonic clock reaches `until`; returns at once when it has passed.
void sleep_until(Seconds until);

}  // namespace troupe
