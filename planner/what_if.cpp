#include "planner/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "planner/prerequisites.h"
#include "planner/split_mix.h"

namespace troupe {
namespace {

constexpr Seconds never = std::numeric_limits<Seconds>::infinity();
constexpr std::uint32_t most_attempts = 4;

/// Uniform in [0, 1).
double uniform(std::uint64_t seed, const Action& action, std::uint64_t draw) {
  std::uint64_t x = seed;
  for (const std::uint64_t part :
       {static_cast<std::uint64_t>(action.op), std::uint64_t{action.stage.value},
        std::uint64_t{action.microbatch.value}, draw})
    x = split_mix(x + part);
  return static_cast<double>(x >> 11U) * 0x1p-53;
}

/// What a lane meets.
struct LaneChange {
  double factor = 1;
  double loss = 0;
  Seconds stops = never;
};

std::vector<LaneChange> lane_changes(const Schedule& schedule, const WhatIf& what_if) {
  std::vector<LaneChange> lanes(schedule.devices.size() + schedule.links.size());
  for (const auto& [device, factor] : what_if.slow) lanes.at(device).factor = factor;
  for (const auto& [device, at] : what_if.stops) lanes.at(device).stops = at;
  for (std::size_t i = 0; i < schedule.links.size(); ++i) {
    const LinkLane& link = schedule.links[i];
    LaneChange& lane = lanes[schedule.devices.size() + i];
    for (const LinkChange& change : what_if.links)
      if (change.from == link.from && change.to == link.to)
        lane.loss = change.loss.value_or(lane.loss);
    // A device that has stopped neither sends nor receives.
    for (const DeviceId end : {link.from, link.to})
      lane.stops = std::min(lane.stops, lanes[end.index()].stops);
  }
  return lanes;
}

/// Lanes by action.
std::vector<std::size_t> lanes_of_actions(const Schedule& schedule, const ActionIndex& index) {
  std::vector<std::size_t> lanes(index.size());
  std::size_t lane = 0;
  const auto note = [&](const std::vector<Action>& actions) {
    for (const Action& action : actions) lanes[index.of(action)] = lane;
    ++lane;
  };
  for (const auto& actions : schedule.devices) note(actions);
  for (const LinkLane& link : schedule.links) note(link.actions);
  return lanes;
}

/// The device of a lane, or end of a link, that stops first, with its time.
std::optional<std::pair<std::uint32_t, Seconds>> stopped_end(const Schedule& schedule,
                                                             std::size_t lane,
                                                             const WhatIf& what_if) {
  std::vector<std::uint32_t> ends{static_cast<std::uint32_t>(lane)};
  if (lane >= schedule.devices.size()) {
    const LinkLane& link = schedule.links[lane - schedule.devices.size()];
    ends = {link.from.value, link.to.value};
  }
  std::optional<std::pair<std::uint32_t, Seconds>> first;
  for (const std::uint32_t device : ends)
    if (const auto at = what_if.stops.find(device);
        at != what_if.stops.end() && (!first || at->second < first->second))
      first = *at;
  return first;
}

}  // namespace

ClusterSpec changed(ClusterSpec cluster, const WhatIf& what_if) {
  for (const LinkChange& change : what_if.links) {
    LinkSpec link = cluster.link(change.from, change.to);
    if (change.latency) link.latency = *change.latency;
    if (change.bandwidth) link.bandwidth = *change.bandwidth;
    cluster.overrides[{change.from.value, change.to.value}] = link;
  }
  return cluster;
}

LaneSeconds disturbed(const Schedule& schedule, ActionSeconds seconds, const WhatIf& what_if) {
  return [lanes = lane_changes(schedule, what_if), seconds = std::move(seconds),
          jitter = what_if.jitter,
          seed = what_if.seed](std::size_t lane, const Action& action, Seconds now) {
    const LaneChange& change = lanes[lane];
    Seconds takes = seconds(action) * change.factor;
    if (jitter > 0) takes *= 1 + jitter * (2 * uniform(seed, action, 0) - 1);
    if (change.loss > 0) {
      std::uint32_t attempts = 1;
      while (attempts <= most_attempts && uniform(seed, action, attempts) < change.loss) ++attempts;
      takes = attempts > most_attempts ? never : takes * attempts;
    }
    return now + takes > change.stops ? never : takes;
  };
}

std::vector<std::string> hang_lines(const Schedule& schedule,
                                    const PlayedStep& step,
                                    const WhatIf& what_if,
                                    const std::vector<std::string>& device_names) {
  const ActionIndex index(schedule.stages);
  const auto lane_of = lanes_of_actions(schedule, index);
  const std::size_t devices = schedule.devices.size();
  const auto name = [&](std::size_t lane) {
    if (lane < devices) return device_names.at(lane);
    const LinkLane& link = schedule.links[lane - devices];
    return lane_title(fmt::format("d{}>d{}", link.from.value, link.to.value), device_names);
  };
  std::map<std::size_t, const StuckLane*> stuck;
  for (const StuckLane& lane : step.stuck) stuck[lane.lane] = &lane;

  std::vector<std::string> lines;
  for (const StuckLane& lane : step.stuck) {
    if (lane.lane >= devices || lane.running) continue;
    std::string line = fmt::format("{}: {}", name(lane.lane), to_string(lane.action));
    // What is missing is on a lane that is stuck itself; the walk ends at one that started.
    for (const StuckLane* at = &lane; !at->running;) {
      const Action& missing = at->missing.front();
      at = stuck.at(lane_of[index.of(missing)]);
      line += fmt::format(" <- {} ({})", to_string(missing), name(at->lane));
      if (at->action != missing) line += fmt::format(" behind {}", to_string(at->action));
    }
    lines.push_back(line + ", which never ends");
  }
  std::set<std::string> culprits;
  for (const StuckLane& lane : step.stuck) {
    if (!lane.running) continue;
    const auto stopped = stopped_end(schedule, lane.lane, what_if);
    culprits.insert(stopped ? fmt::format("culprit: {}, which stops at {}",
                                          device_names.at(stopped->first),
                                          format_seconds(stopped->second))
                            : fmt::format("culprit: {}, which loses {} {} times", name(lane.lane),
                                          to_string(lane.action), most_attempts));
  }
  lines.insert(lines.end(), culprits.begin(), culprits.end());
  return lines;
}

}  // namespace troupe
