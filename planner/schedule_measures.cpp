#include "planner/schedule_measures.h"

#include <algorithm>
#include <map>

namespace troupe {

std::vector<std::uint32_t> in_flight_per_device(const Schedule& schedule) {
  const Op closes = schedule.split_backward ? Op::backward_weight : Op::backward;
  std::vector<std::uint32_t> most;
  for (const auto& lane : schedule.devices) {
    std::uint32_t open = 0;
    most.push_back(0);
    for (const Action& action : lane) {
      if (action.op == Op::forward) most.back() = std::max(most.back(), ++open);
      if (action.op == closes && open > 0) --open;
    }
  }
  return most;
}

Seconds longest_device_span(const Timeline& timeline) {
  std::map<std::string, std::pair<Seconds, Seconds>> spans;  // by lane: first begin, last end
  for (const Span& span : timeline.spans) {
    const Op op = span.action.op;
    if (op != Op::forward && op != Op::backward && op != Op::backward_input &&
        op != Op::backward_weight)
      continue;
    const auto [at, is_new] = spans.try_emplace(span.lane, span.begin, span.end);
    at->second.first = std::min(at->second.first, span.begin);
    at->second.second = std::max(at->second.second, span.end);
  }
  Seconds longest = 0;
  for (const auto& [lane, span] : spans) longest = std::max(longest, span.second - span.first);
  return longest;
}

}  // namespace troupe
