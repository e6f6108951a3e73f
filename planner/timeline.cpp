#include "planner/timeline.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

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
  auto& spans = timeline.spans;
  const auto by_lane = [](const Span& a, const Span& b) { return a.lane < b.lane; };
  const auto by_begin = [](const Span& a, const Span& b) { return a.begin < b.begin; };
  // A simulation gives them in order of begin: what is left is short runs that begin together.
  if (!std::is_sorted(spans.begin(), spans.end(), by_begin))
    std::stable_sort(spans.begin(), spans.end(), by_begin);
  for (auto from = spans.begin(); from != spans.end();) {
    const auto to = std::find_if(from, spans.end(),
                                 [&](const Span& span) { return span.begin != from->begin; });
    if (to - from > 1) std::stable_sort(from, to, by_lane);
    from = to;
  }
}

namespace {

/// Links last, then by length of the number.
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

std::string lane_title(const std::string& lane, const std::vector<std::string>& device_names) {
  const auto device = [&](std::string_view name) {
    std::size_t number = 0;
    const auto read = std::from_chars(name.data() + std::min<std::size_t>(name.size(), 1),
                                      name.data() + name.size(), number);
    const bool known = !name.empty() && name.front() == 'd' && read.ec == std::errc{} &&
                       read.ptr == name.data() + name.size() && number < device_names.size();
    return known ? device_names[number] : std::string(name);
  };
  const std::string_view text = lane;
  const std::size_t arrow = text.find('>');
  if (arrow == std::string_view::npos) return device(text);
  return device(text.substr(0, arrow)) + " to " + device(text.substr(arrow + 1));
}

bool lane_before(const std::string& a, const std::string& b) {
  return lane_rank(a) < lane_rank(b);
}

std::vector<std::string> lanes_of(const Timeline& timeline) {
  std::unordered_set<std::string> seen;
  for (const Span& span : timeline.spans) seen.insert(span.lane);
  std::vector<std::string> lanes(seen.begin(), seen.end());
  std::sort(lanes.begin(), lanes.end(), lane_before);
  return lanes;
}

std::string to_chrome_trace(const std::vector<std::pair<std::string, Timeline>>& timelines,
                            const std::vector<std::string>& device_names) {
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
    std::unordered_map<std::string, std::size_t> threads;
    for (const std::string& lane : lanes_of(timeline)) {
      const std::size_t thread = threads.size();
      threads[lane] = thread;
      label("thread_name", thread, lane_title(lane, device_names));
    }
    for (const Span& span : timeline.spans)
      events.push_back(
          {{"ph", "X"},
           {"name", to_string(span.action)},
           {"cat", category_of(span.action.op)},
           {"pid", process},
           {"tid", threads.at(span.lane)},
           {"ts", span.begin * 1e6},
           {"dur", (span.end - span.begin) * 1e6},
           {"args",
            {{"stage", span.action.stage.value}, {"microbatch", span.action.microbatch.value}}}});
  }
  return json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump(
      -1, ' ', false, json::error_handler_t::replace);
}

}  // namespace troupe
