/// What papers report of a schedule's timeline.
#pragma once

#include <vector>

#include "planner/schedule.h"
#include "planner/timeline.h"

namespace troupe {

/// By device: most stage inputs (microbatches, or parts of them with several stages a device)
/// between F and B/W at once.
std::vector<std::uint32_t> in_flight_per_device(const Schedule& schedule);

/// The longest time between the begin of a device's first and the end of its last F, B, I or W. The
/// time of a step where an update waits for nobody, as zero-bubble schedules count it.
Seconds longest_device_span(const Timeline& timeline);

}  // namespace troupe
