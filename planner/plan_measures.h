/// What a plan's predicted timeline says of its devices.
#pragma once

#include <vector>

#include "planner/plan.h"

namespace troupe {

/// By device: seconds of the predicted step that it computes.
std::vector<Seconds> busy_of_devices(const Plan& plan);

}  // namespace troupe
