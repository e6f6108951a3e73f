#include "planner/lowering.h"

#include <functional>
#include <queue>
#include <utility>

#include "planner/dry_run.h"

namespace troupe {

Schedule add_transfers(Schedule compute) {
  DryRun run(compute.stages, compute.split_backward);
  const std::size_t devices = compute.devices.size();
  std::vector<std::size_t> next(devices);
  std::vector<bool> busy(devices);
  using End = std::pair<std::uint64_t, std::size_t>;  // tick, device
  std::priority_queue<End, std::vector<End>, std::greater<>> ends;
  std::uint64_t now = 0;
  const auto start_ready = [&] {
    for (std::size_t d = 0; d < devices; ++d) {
      if (busy[d] || next[d] == compute.devices[d].size()) continue;
      const Action& action = compute.devices[d][next[d]];
      if (!run.ready(action)) continue;
      busy[d] = true;
      ends.emplace(now + DryRun::ticks(action), d);
    }
  };
  start_ready();
  while (!ends.empty()) {
    now = ends.top().first;
    while (!ends.empty() && ends.top().first == now) {
      const std::size_t d = ends.top().second;
      ends.pop();
      run.finish(compute.devices[d][next[d]++]);
      busy[d] = false;
    }
    start_ready();
  }
  compute.links = run.take_links();
  return compute;
}

}  // namespace troupe
