/// The plan as tables: what `troupe plan` prints, `troupe train` shows at start and end, and the
/// report contains.
#pragma once

#include <string>
#include <vector>

#include "actors/step_row.h"
#include "apps/table.h"
#include "planner/plan.h"

namespace troupe {

/// What a run measured, to stand beside the plan. Without rows: nothing was measured.
struct MeasuredRun {
  Seconds step = 0;                ///< median over the steps after the first; 0: unknown
  std::vector<DeviceRow> devices;  ///< peaks over all steps, busy seconds of the median step
};

/// The median step time and the largest peaks of some steps.
MeasuredRun measure_steps(const std::vector<StepRow>& steps);

/// "1.50 GiB"; "-" of none.
TableCell bytes_cell(Bytes bytes);
/// One row per stage: layers, device, microbatches in flight.
Table stage_table(const Plan& plan, const ClusterSpec& cluster);
/// One row per device: bytes by category, total, cap, headroom, measured peak where there is one.
Table device_table(const Plan& plan, const ClusterSpec& cluster, const MeasuredRun& measured);
/// Why this plan: what binds the step, the search, the runner-up; then the terms of the tables.
std::string reasons_text(const Plan& plan);

}  // namespace troupe
