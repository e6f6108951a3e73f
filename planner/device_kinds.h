/// Devices that nothing but name and node tells apart.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/cluster.h"

namespace troupe {

/// By device: a number that devices alike in rates, memory and measured times share, counted from 0
/// in the order in which the kinds first appear.
std::vector<std::uint32_t> device_kinds(const ClusterSpec& cluster);

}  // namespace troupe
