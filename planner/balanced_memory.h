/// Stages that fill the fullest device least.
#pragma once

#include <vector>

#include "planner/plan.h"

namespace troupe {

struct PlanRequest;

/// Devices by falling memory, so that the roomy ones stand where most microbatches are in flight,
/// one stage each; over the counts of devices, the cuts with the least largest share of a device's
/// memory (bytes needed by bytes there), by dynamic programming. More devices only where they lower
/// that share by more than a hundredth. Promise: the request was checked; one stage a device.
std::vector<StagePlan> balanced_memory_stages(const PlanRequest& request);

}  // namespace troupe
