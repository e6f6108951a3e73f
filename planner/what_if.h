/// A step under other conditions than the plan's: slow devices, slow or lossy links, times that
/// vary, devices that stop. Every random figure is a function of (seed, action), so that two
/// schedules, or one step with and without a change, meet the same luck.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/cluster.h"
#include "planner/simulate.h"

namespace troupe {

/// A directed link that is not as the cluster says. What is absent stays; of several changes of one
/// link each holds in what it says, the last one where they differ.
struct LinkChange {
  DeviceId from, to;
  std::optional<Seconds> latency;
  std::optional<BytesPerSecond> bandwidth;
  /// Share of the attempts in which a tensor is lost or damaged and sent again, in [0, 1]; a link
  /// repeats three times at most (as devices/zmq_link does), then the transfer never ends.
  std::optional<double> loss;
};

struct WhatIf {
  std::map<std::uint32_t, double> slow;  ///< by device: its actions last so many times as long
  std::vector<LinkChange> links;
  /// Every action lasts a factor between 1 - jitter and 1 + jitter of its time, uniform; in [0, 1].
  double jitter = 0;
  std::uint64_t seed = 1;
  std::map<std::uint32_t, Seconds> stops;  ///< by device: what would end later never ends
  bool empty() const { return slow.empty() && links.empty() && jitter == 0 && stops.empty(); }
};

/// The cluster with the latencies and bandwidths of the changed links.
ClusterSpec changed(ClusterSpec cluster, const WhatIf& what_if);

/// Adds to `seconds` (which already knows the links' latencies and bandwidths) all that a step
/// meets while it runs. The schedule must outlive the result.
LaneSeconds disturbed(const Schedule& schedule, ActionSeconds seconds, const WhatIf& what_if);

/// Who waits for whom, a line for each device that waits, "t4: B1.0 <- XB2.0 (v100 to t4) <- B2.0
/// (v100), which never ends", each arrow from an action to what it waits for; then the culprits:
/// devices that stop and links that lose a tensor. Empty where the step ended.
std::vector<std::string> hang_lines(const Schedule& schedule,
                                    const PlayedStep& step,
                                    const WhatIf& what_if,
                                    const std::vector<std::string>& device_names);

}  // namespace troupe
