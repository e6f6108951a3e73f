/// A layout of `troupe estimate` as what `troupe simulate` plays.
#pragma once

#include "apps/simulation.h"
#include "planner/layout_search.h"

namespace troupe {

/// Devices are pipeline stages ("stage0"), each of them for all of its ranks, with what one rank
/// may hold. Errors (invalid_input): more actions than are sensibly played at once.
Result<SimulationCase> layout_case(const ArchitectureRun& run,
                                   const DeviceGroup& group,
                                   const Framework& framework,
                                   const PricedLayout& priced);

/// "as the closed form", or by how much the played step is off it, and why where that is more than
/// 1 %. `played` is undisturbed.
std::string against_closed_form(const ArchitectureRun& run,
                                const PricedLayout& priced,
                                Seconds played);

}  // namespace troupe
