/// A checkpoint's tensors into a stage's memory.
#pragma once

#include "actors/checkpoint/checkpoint.h"
#include "kernels/stage.h"

namespace troupe {

/// Fills the weights and, where the stage has them, the moments of its layers. On the stage's
/// device; `Stage::weights_changed` has to follow.
Status read_state(const Checkpoint& checkpoint, Stage& stage);

}  // namespace troupe
