/// The drawings of the report, each one SVG element as text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "actors/step_row.h"
#include "planner/plan.h"

namespace troupe {

/// Text for HTML and SVG: & < > " ' are escaped, control characters and broken UTF-8 shown as '?'.
std::string escape_html(std::string_view text);

/// Training loss of every step, validation loss where it was measured, and a line for the unigram
/// model where it is known (0: not).
std::string loss_chart(const std::vector<StepRow>& steps,
                       const std::vector<EvaluationRow>& evaluations,
                       double unigram_loss);

/// One row per lane, coloured by op, on an axis of `length` seconds (0: the timeline's own), so
/// that two timelines can stand under each other.
std::string timeline_chart(const Timeline& timeline, const ClusterSpec& cluster, Seconds length);
/// What the colours of `timeline_chart` mean.
std::string timeline_legend(const std::vector<const Timeline*>& timelines);

/// One bar per device: predicted bytes by category against the cap, with a mark at the measured
/// peak where there is one.
std::string memory_chart(const Plan& plan,
                         const ClusterSpec& cluster,
                         const std::vector<DeviceRow>& measured);
std::string memory_legend();

}  // namespace troupe
