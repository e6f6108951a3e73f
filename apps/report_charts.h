/// The drawings of the report, each one SVG element as text.
#pragma once

#include <string>
#include <vector>

#include "actors/step_row.h"
#include "planner/plan.h"

namespace troupe {

/// Training loss of every step, validation loss where it was measured, and a line for the unigram
/// model where it is known (0: not).
std::string loss_chart(const std::vector<StepRow>& steps,
                       const std::vector<EvaluationRow>& evaluations,
                       double unigram_loss);

/// One bar per device: predicted bytes by category against the cap, with a mark at the measured
/// peak where there is one.
std::string memory_chart(const std::vector<MemoryPlan>& memory_by_device,
                         const ClusterSpec& cluster,
                         const std::vector<DeviceRow>& measured);
/// `measured`: with the mark of the measured peak.
std::string memory_legend(bool measured);

}  // namespace troupe
