/// The layers of a stage with their parameters, and how their bytes add up. Stage carves real
/// memory through it; the profile counts with unbounded areas.
#pragma once

#include <memory>
#include <vector>

#include "kernels/layers/layer.h"

namespace troupe::kernels {

/// One layer of a stage. Movable; the layer keeps views of memory, not of the parameters.
struct StageLayer {
  std::uint32_t index = 0;  ///< in the model
  LayerKind kind = LayerKind::block;
  std::vector<Parameter> parameters;
  std::unique_ptr<Layer> layer;
  Bytes saved_bytes = 0;     ///< at the largest extent
  Bytes deferred_bytes = 0;  ///< at the largest extent
};

/// Bytes of a layer's parameters.
struct ParameterBytes {
  Bytes weights = 0, gradients = 0, optimizer = 0;
};
ParameterBytes parameter_bytes(const ModelSpec& model,
                               std::uint32_t layer,
                               DType compute,
                               Share table_share);

/// `embedding`: the stage's embedding, for a tied head beside it (Share::half); else null.
/// `recompute` is for a block.
StageLayer build_layer(const ModelSpec& model,
                       std::uint32_t layer,
                       DType compute,
                       const Extent& largest,
                       Share table_share,
                       Recompute recompute,
                       StageLayer* embedding,
                       ParameterAreas& areas);

/// What a layer's table is, given the layers of its stage.
Share table_share_of(const ModelSpec& model, LayerRange layers, std::uint32_t layer);

/// The running input gradient of a stage: at the front of the workspace in every backward.
Bytes boundary_bytes(const ModelSpec& model, DType compute, const Extent& largest);
/// Workspace of one layer's forward, and of its backward with the boundary and, for a fused
/// backward, what a split one would keep in a deferred slab.
Bytes forward_workspace(const StageLayer& layer, const Extent& largest);
Bytes backward_workspace(const StageLayer& layer,
                         const ModelSpec& model,
                         DType compute,
                         const Extent& largest);

// Actions on parameters, shared by stage and profile.

/// AdamW on one parameter that has state here.
struct ParameterUpdate {
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double gradient_scale = 1;
  std::uint64_t adam_step = 1;
};
void update_parameter(Stream& stream, const Parameter& parameter, const ParameterUpdate& update);

}  // namespace troupe::kernels
