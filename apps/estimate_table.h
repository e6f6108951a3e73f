/// What `troupe estimate` shows: layouts side by side, the terms of one, and why.
#pragma once

#include <string>
#include <vector>

#include "apps/table.h"
#include "planner/layout_search.h"

namespace troupe {

/// "tensor 8 x pipeline 2 x data 4, ZeRO-1, microbatch 2, full recomputation".
std::string layout_text(const Layout& layout);

/// One row per layout: its numbers, step time, tokens a second and device, model flops utilisation,
/// bytes of the fullest device. `flops`: of one step, of the model alone.
Table layout_table(const std::vector<PricedLayout>& layouts,
                   const ArchitectureRun& run,
                   const DeviceGroup& group,
                   double flops);
/// Seconds of a step by term.
Table seconds_table(const StepSeconds& seconds);
/// Bytes of the fullest device by part.
Table bytes_table(const StepBytes& bytes, double memory);

}  // namespace troupe
