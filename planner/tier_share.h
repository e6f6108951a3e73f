/// What a device has of the host memory and the disk of its node.
#pragma once

#include <vector>

#include "planner/cluster.h"
#include "planner/zero_memory.h"

namespace troupe {

struct TierShare {
  LinkSpec link;  ///< to and from the host's memory
  Bytes host = 0, disk = 0;
  BytesPerSecond host_rate = 0, disk_read = 0, disk_write = 0;
  /// What lies on disk passes through host memory.
  bool has(StateTier tier) const;
  friend bool operator==(const TierShare& a, const TierShare& b);
};

/// By device: equal shares for all devices of a node.
std::vector<TierShare> tier_shares(const ClusterSpec& cluster);

}  // namespace troupe
