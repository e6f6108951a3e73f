/// Step time and peak memory of any Architecture under a layout: dense blocks and blocks with
/// experts, context and expert parallelism, sharded data parallelism, recomputation of parts. The
/// terms are those of planner/estimate.h.
#pragma once

#include <string>
#include <vector>

#include "planner/estimate.h"

namespace troupe {

/// A model on sequences of one length.
struct ArchitectureRun {
  Architecture model;
  double sequence = 1;
};

/// Every reason why the layout cannot run, in words; empty: none.
std::vector<std::string> layout_faults(const ArchitectureRun& run, const Layout& layout);

/// Seconds of one block for one microbatch on one device, with its traffic as far as it shows.
/// Experts add the exchange of tokens, context parallelism what its ring cannot hide beside the
/// attention of a part. Backward holds what it computes again.
BlockSeconds block_seconds(const ArchitectureRun& run,
                           std::uint32_t block,
                           const Layout& layout,
                           const Framework& framework,
                           const TrainingCluster& cluster);

/// ZeRO-3 without a pipeline: sharded_step_seconds of all layers. Otherwise 1F1B, interleaved with
/// chunks > 1, as step_seconds of a TransformerStack. Promise: no layout_faults.
StepSeconds step_seconds(const ArchitectureRun& run,
                         const Layout& layout,
                         const Framework& framework,
                         const TrainingCluster& cluster);

/// At the worst of three moments (the loss is computed, the last block runs back, the optimizer
/// steps) on the worse of the first and the last stage. Promise: no layout_faults.
StepBytes step_bytes(const ArchitectureRun& run, const Layout& layout, const Framework& framework);

/// Flops of one step on each device, with what is computed again.
double device_flops(const ArchitectureRun& run, const Layout& layout);

}  // namespace troupe
