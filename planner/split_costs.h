/// Seconds of F, I and W of a transformer's layers on one device, for schedules that cut backward
/// in two: the ops of layer_ops.h, the products that make gradients of weights apart.
#pragma once

#include "planner/cost.h"
#include "planner/device_model.h"
#include "planner/layer_ops.h"

namespace troupe {

/// One block: forward, backward_input, backward_weight; norm and update are 0. W has the products
/// alone; everything else of backward is part of I, which the stage before waits for.
LayerSeconds split_block_seconds(const BlockShape& shape,
                                 const BlockCut& cut,
                                 const AcceleratorRates& rates);
/// The output layer and its loss. Of what is no product, half is forward and half is I.
LayerSeconds split_output_seconds(const BlockShape& shape,
                                  const BlockCut& cut,
                                  const AcceleratorRates& rates);
/// Lookup in forward; the scattered gradient, which nobody waits for, in W.
LayerSeconds split_embedding_seconds(const BlockShape& shape,
                                     const BlockCut& cut,
                                     const AcceleratorRates& rates);

/// The sum of `count` times `one` and `sum`.
void add_seconds(LayerSeconds& sum, const LayerSeconds& one, double count = 1);

}  // namespace troupe
