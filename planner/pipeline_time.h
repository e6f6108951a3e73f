/// The step time of a 1F1B pipeline with one stage a device, by recurrence over the ends of its
/// actions: what the simulator says of the same costs, many times faster. The search for partitions
/// at scale judges its moves by it; what it chooses is simulated.
#pragma once

#include <cstdint>
#include <limits>

#include "planner/simulate.h"

namespace troupe {

/// Equal to simulated_seconds of the 1F1B schedule over as many devices as there are stages, where
/// `in_flight` leaves as many microbatches as that has. Promise: at least one stage, microbatch,
/// slot and microbatch in flight.
Seconds one_f_one_b_seconds(const StepCosts& costs,
                            std::uint32_t microbatches,
                            std::uint32_t transfer_slots,
                            bool tied,
                            std::uint32_t in_flight = std::numeric_limits<std::uint32_t>::max());

}  // namespace troupe
