/// Timelines as drawings: one SVG element for a page, or a file of its own.
#pragma once

#include <string>
#include <vector>

#include "planner/cluster.h"
#include "planner/timeline.h"

namespace troupe {

/// One row per lane, coloured by op, on an axis of `length` seconds (0: the timeline's own), so
/// that two timelines can stand under each other. The page has the style (apps/html.h).
std::string timeline_chart(const Timeline& timeline, const ClusterSpec& cluster, Seconds length);
/// What the colours of `timeline_chart` mean.
std::string timeline_legend(const std::vector<const Timeline*>& timelines);

/// The same as an SVG file with title, legend and style. Promise: there are spans and time passes.
std::string timeline_svg(const std::string& title,
                         const Timeline& timeline,
                         const ClusterSpec& cluster);

}  // namespace troupe
