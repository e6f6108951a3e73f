/// Activations that do not fit where they are made, kept on devices with room until the backward
/// needs them: what Kim et al. 2023 ("BPipe", ICML'23) do between paired stages, for any stages and
/// unlike devices. Priced only.
///
/// Under 1F1B a stage keeps d microbatches in flight. With n of them elsewhere, n of every d
/// microbatches leave after their forward and come back before their backward; the two directions
/// of a link do not contend. That hides behind computing as long as a microbatch's share of the
/// transfers takes no longer than the slowest stage takes for one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/plan.h"

namespace troupe {

struct PlanRequest;

struct Shipment {
  std::uint32_t stage = 0;
  DeviceId to;
  std::uint32_t microbatches = 0;  ///< of those in flight
  Bytes bytes = 0;                 ///< that they take there
};

struct Overflow {
  std::vector<Shipment> shipments;
  Seconds exposed = 0;  ///< of the step, at the stage that waits most
};

/// Ships what is over to the nearest room, the cheapest links first. A stage keeps two microbatches
/// itself: the one at work and the one that comes or goes. Nothing where the room does not suffice.
/// Promise: one stage a device, schedule 1F1B.
std::optional<Overflow> ship_overflow(const std::vector<StagePlan>& stages,
                                      const PlanRequest& request);

/// "2 microbatches of dev0 to dev3, 1 of dev1 to dev3".
std::string to_text(const Overflow& overflow,
                    const std::vector<StagePlan>& stages,
                    const ClusterSpec& cluster);

}  // namespace troupe
