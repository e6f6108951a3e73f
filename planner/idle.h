/// Where the time of each device goes: busy, or idle for a reason. The reason of a gap comes from
/// the chain of actions that the next one waited for, walked back through the gap: whatever ended
/// last before each of them, be it a prerequisite or the action before it in its lane.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "planner/schedule.h"
#include "planner/timeline.h"

namespace troupe {

enum class IdleReason : std::uint8_t {
  fill,          ///< before the device's first action: the pipeline fills
  stage_before,  ///< an F waits for the stage before (or a B for it to take an earlier gradient)
  stage_after,   ///< a B or I waits for the stage after
  link,          ///< of such a wait, the time in which a link was at work
  drain,         ///< before N or U: the other devices end their part of the step
  runtime,       ///< all it needed was there; never in a simulation, only in what was played
  nothing,       ///< it has nothing (more) to do
  hang,          ///< it waits for something that never ends
};
inline constexpr std::size_t idle_reason_count = 8;
std::string_view to_string(IdleReason reason);  ///< "fill", "stage before", "nothing to do", ...

/// The time of one device, from 0 to the end of the timeline.
struct DeviceUse {
  Seconds busy = 0;
  std::array<Seconds, idle_reason_count> idle{};
  /// Of the idle time, whatever its reason: while what the device waited for was on a link.
  Seconds exposed = 0;
  Seconds idle_for(IdleReason reason) const { return idle[static_cast<std::size_t>(reason)]; }
  Seconds idle_sum() const;
};

/// By DeviceId. Busy and idle seconds of every device add up to the timeline's length. Promise: the
/// timeline is of this schedule; spans may be missing at the end of lanes (a hang).
std::vector<DeviceUse> device_use(const Schedule& schedule, const Timeline& timeline);

/// Idle share of the devices that have work, over the whole timeline: 0 to 1.
double bubble_share(const Schedule& schedule, const std::vector<DeviceUse>& use);

}  // namespace troupe
