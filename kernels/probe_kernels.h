/// Measures what this device's kernels reach: the rates that plans are priced with.
#pragma once

#include "devices/device.h"
#include "planner/cost.h"

namespace troupe::kernels {

/// Runs matrix products, an elementwise op and a copy on a fast stream for about half a second.
/// action_overhead is left 0: it belongs to whoever runs actions.
DeviceRates measure_rates(Stream& stream);

}  // namespace troupe::kernels
