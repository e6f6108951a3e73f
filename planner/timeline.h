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

/// "d0" and "d0>d1" with the devices' names: "v100", "v100 to t4". A device beyond the names keeps
/// its number.
std::string lane_title(const std::string& lane, const std::vector<std::string>& device_names);
/// Devices before links, each by number: "d2" before "d10" before "d0>d1".
bool lane_before(const std::string& a, const std::string& b);
/// The lanes of the spans, in that order.
std::vector<std::string> lanes_of(const Timeline& timeline);

/// One Chrome trace (Perfetto) with a process row per name ("planned", "played") and a thread row
/// per lane under its title.
std::string to_chrome_trace(const std::vector<std::pair<std::string, Timeline>>& timelines,
                            const std::vector<std::string>& device_names);

/// The timeline as text: a row per lane, `width` columns from 0 to `length` seconds (0: the
/// timeline's own). A column shows what takes most of its time: F, B, I, W, N or U on a device, -
/// on a link, . for nothing. Promise: width > 0.
std::string timeline_text(const Timeline& timeline,
                          const std::vector<std::string>& device_names,
                          std::size_t width,
                          Seconds length = 0);

}  // namespace troupe
