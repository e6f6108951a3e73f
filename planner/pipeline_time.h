/// The step time of a 1F1B pipeline with one stage a device, by recurrence over the ends of its
/// actions: what the simulator says of the same costs, many times faster. The search for partitions
/// at scale judges its moves by it; what it chooses is simulated.
#pragma once

#include <cstdint>

#include "planner/simulate.h"

namespace troupe {

/// Equal to simulated_seconds of the 1F1B schedule over as many devices as there are stages.
/// Promise: at least one stage, microbatch and slot.
Seconds one_f_one_b_seconds(const StepCosts& costs,
                            std::uint32_t microbatches,
                            std::uint32_t transfer_slots,
                            bool tied);

}  // namespace troupe
