/// Devices that nothing but name and node tells apart.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/cluster.h"

namespace troupe {

/// By device: a number that devices alike in rates, memory, measured times and their share of the
/// node's memory and disk have in common, counted from 0 in the order in which the kinds first
/// appear.
std::vector<std::uint32_t> device_kinds(const ClusterSpec& cluster);

}  // namespace troupe
