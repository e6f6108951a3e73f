#include "kernels/layers/stage_layers.h"

#include "kernels/ops.h"

namespace troupe::kernels {

ParameterBytes parameter_bytes(const ModelSpec& model,
                               std::uint32_t layer,
                               DType compute,
                               Share table_share) {
  std::vector<Parameter> parameters = layer_parameters(model, layer, table_share);
  ParameterAreas areas;
  carve_parameters(parameters, layer_kind(model, layer), compute, areas);
  return {areas.weights.used(), areas.gradients.used(), areas.optimizer.used()};
}

StageLayer build_layer(const ModelSpec& model,
                       std::uint32_t layer,
                       DType compute,
                       const Extent& largest,
                       Share table_share,
                       Recompute recompute,
                       StageLayer* embedding,
                       ParameterAreas& areas) {
  StageLayer built;
  built.index = layer;
  built.kind = layer_kind(model, layer);
  built.parameters = layer_parameters(model, layer, table_share);
  carve_parameters(built.parameters, built.kind, compute, areas);
  if (table_share == Share::half) {
    EXPECTS(embedding != nullptr && embedding->kind == LayerKind::embedding);
    Parameter& table = built.parameters.back();
    Parameter& owner = embedding->parameters.front();
    table.weight = owner.weight;
    // The owner's update refreshes the copy that the head's products read.
    if (table.has_copy())
      owner.compute = table.compute;
    else
      table.compute = owner.weight;
  }
  switch (built.kind) {
    case LayerKind::embedding:
      built.layer = make_embedding(model, compute, built.parameters);
      break;
    case LayerKind::block:
      built.layer = make_block(model, compute, layer, recompute, built.parameters);
      break;
    case LayerKind::head: built.layer = make_head(model, compute, built.parameters); break;
  }
  built.saved_bytes = built.layer->saved_bytes(largest);
  built.deferred_bytes = built.layer->deferred_bytes(largest);
  return built;
}

Share table_share_of(const ModelSpec& model, LayerRange layers, std::uint32_t layer) {
  if (!model.tied || layer_kind(model, layer) != LayerKind::head) return Share::none;
  return layers.holds(0) ? Share::half : Share::copy;
}

Bytes boundary_bytes(const ModelSpec& model, DType compute, const Extent& largest) {
  return arena_bytes(largest.rows() * model.width * size_of(compute));
}

Bytes forward_workspace(const StageLayer& layer, const Extent& largest) {
  return layer.layer->forward_workspace_bytes(largest);
}

Bytes backward_workspace(const StageLayer& layer,
                         const ModelSpec& model,
                         DType compute,
                         const Extent& largest) {
  return boundary_bytes(model, compute, largest) + layer.deferred_bytes +
         layer.layer->backward_workspace_bytes(largest);
}

void update_parameter(Stream& stream, const Parameter& parameter, const ParameterUpdate& update) {
  AdamW args;
  args.weight = parameter.weight;
  args.first_moment = parameter.first_moment;
  args.second_moment = parameter.second_moment;
  args.gradient = parameter.gradient;
  if (parameter.has_copy()) args.weight_bf16 = parameter.compute;
  args.learning_rate = update.learning_rate;
  args.beta1 = update.beta1;
  args.beta2 = update.beta2;
  args.epsilon = update.epsilon;
  args.weight_decay = parameter.spec.decays ? update.weight_decay : 0;
  args.gradient_scale = update.gradient_scale;
  args.step = update.adam_step;
  adamw(stream, args);
}

}  // namespace troupe::kernels
