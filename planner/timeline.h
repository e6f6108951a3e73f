/// Spans of actions on lanes, planned or played: one type, so that the two can be compared.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "planner/schedule.h"
#include "planner/units.h"

namespace troupe {

/// One action on one lane. Times are seconds from the start of the step.
struct Span {
  Action action;
  std::string lane;  ///< "d0" or "d0>d1"
  Seconds begin = 0;
  Seconds end = 0;
  friend bool operator==(const Span&, const Span&) = default;
};

struct Timeline {
  std::vector<Span> spans;  ///< sorted by (begin, lane)
  Seconds makespan() const;
  Seconds busy(const std::string& lane) const;
  friend bool operator==(const Timeline&, const Timeline&) = default;
};

/// Puts spans into the order of a Timeline; spans of no length keep their order.
void sort_spans(Timeline& timeline);

/// One Chrome trace (Perfetto) with a process row per name ("planned", "played") and a thread row
/// per lane.
std::string to_chrome_trace(const std::vector<std::pair<std::string, Timeline>>& timelines);

}  // namespace troupe
