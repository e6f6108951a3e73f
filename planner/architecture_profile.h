/// Layer profiles of any Architecture, counted from its shape: what planning needs where there are
/// no layers yet that the meta device could run. Products, their bytes and what is kept come from
/// planner/layer_ops.h; everything else is as the layers of kernels/ count it (f32 master weights,
/// Adam's two moments, bf16 copies of matrices where computed in bf16, the loss over tiles of
/// logits). For models that are trained a test holds the two beside each other.
#pragma once

#include "planner/architecture.h"
#include "planner/plan.h"

namespace troupe {

/// Every expert of a block is on the block's device, and tokens spread evenly over them. Scratch of
/// kernels for each thread is not counted.
ModelProfile architecture_profile(const Architecture& model, const StepShape& shape);

}  // namespace troupe
