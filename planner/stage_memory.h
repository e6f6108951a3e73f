/// Bytes that one stage takes from its device's arena, from the profiles of its layers. This is the
/// one place that knows how layers add up to a stage; kernels/stage.h allocates by the same rules,
/// and a test compares the two for every kind of stage.
///
/// Every byte count of a LayerProfile is already a sum of arena-rounded parts, so stages are plain
/// sums, with three corrections:
///  - a stage that does not begin with the embedding keeps its input in each activation slab
///    (layers save their output, which the next layer reads; the input of the first comes by link);
///  - a tied head beside its embedding shares weight and moments with it (two gradient halves
///  stay);
///  - workspace is the maximum over layers and actions, and one block serves all stages of a
///  device.
#pragma once

#include <cstdint>

#include "planner/plan.h"

namespace troupe {

/// `workspace` is to be maximised, everything else to be summed, over the stages of a device.
/// `transfer` is 0: buffers of links belong to the edges, not to the stage.
MemoryPlan stage_memory(const ModelSpec& model,
                        const ModelProfile& profile,
                        LayerRange layers,
                        std::uint32_t in_flight,
                        std::uint32_t deferred,
                        const StageRecompute& recompute = {});

}  // namespace troupe
