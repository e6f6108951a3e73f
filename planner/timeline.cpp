#include "planner/timeline.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

namespace troupe {

Seconds Timeline::makespan() const {
  Seconds last = 0;
  for (const Span& span : spans) last = std::max(last, span.end);
  return last;
}

Seconds Timeline::busy(const std::string& lane) const {
  Seconds sum = 0;
  for (const Span& span : spans)
    if (span.lane == lane) sum += span.end - span.begin;
  return sum;
}

void sort_spans(Timeline& timeline) {
  std::stable_sort(timeline.spans.begin(), timeline.spans.end(), [](const Span& a, const Span& b) {
    return std::tie(a.begin, a.lane) < std::tie(b.begin, b.lane);
  });
}

namespace {

/// Devices before links, each by number: "d2" before "d10" before "d0>d1".
std::tuple<bool, std::size_t, std::string> lane_rank(const std::string& lane) {
  return {lane.find('>') != std::string::npos, lane.size(), lane};
}

const char* category_of(Op op) {
  switch (op) {
    case Op::forward: return "forward";
    case Op::backward: return "backward";
    case Op::backward_input: return "backward_input";
    case Op::backward_weight: return "backward_weight";
    case Op::transfer_forward:
    case Op::transfer_backward:
    case Op::transfer_tied: return "transfer";
    case Op::norm: return "norm";
    case Op::update: return "update";
  }
  return "unknown";
}

}  // namespace

std::string to_chrome_trace(const std::vector<std::pair<std::string, Timeline>>& timelines) {
  using nlohmann::json;
  json events = json::array();
  for (std::size_t process = 0; process < timelines.size(); ++process) {
    const auto& [name, timeline] = timelines[process];
    const auto label = [&](const char* what, std::size_t thread, const std::string& text) {
      events.push_back({{"ph", "M"},
                        {"name", what},
                        {"pid", process},
                        {"tid", thread},
                        {"args", {{"name", text}}}});
    };
    label("process_name", 0, name);
    std::map<std::tuple<bool, std::size_t, std::string>, std::size_t> threads;
    for (const Span& span : timeline.spans) threads.emplace(lane_rank(span.lane), 0);
    std::size_t next = 0;
    for (auto& [rank, thread] : threads) {
      thread = next++;
      label("thread_name", thread, std::get<2>(rank));
    }
    for (const Span& span : timeline.spans)
      events.push_back(
          {{"ph", "X"},
           {"name", to_string(span.action)},
           {"cat", category_of(span.action.op)},
           {"pid", process},
           {"tid", threads.at(lane_rank(span.lane))},
           {"ts", span.begin * 1e6},
           {"dur", (span.end - span.begin) * 1e6},
           {"args",
            {{"stage", span.action.stage.value}, {"microbatch", span.action.microbatch.value}}}});
  }
  return json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump();
}

}  // namespace troupe
