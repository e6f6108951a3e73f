// Counts what one layer of each kind costs by running it on the meta device: the same layer code
// and the same carving as a real stage, without memory behind it.
#include <algorithm>

#include "kernels/layers/stage_layers.h"
#include "kernels/ops.h"
#include "kernels/stage.h"

namespace troupe {
namespace {

using kernels::Area;
using kernels::BackwardCall;
using kernels::Call;
using kernels::Extent;
using kernels::Parameter;
using kernels::ParameterAreas;
using kernels::ParameterBytes;
using kernels::Share;
using kernels::StageLayer;

/// Counts what `action` does on a meta stream.
template <class F>
OpCount counted(F&& action) {
  Stream stream(Stream::Body::meta, nullptr);
  action(stream);
  return stream.count();
}

void count_parameters(LayerProfile& profile, const ModelSpec& model, StageLayer& layer) {
  profile.norm = counted([&](Stream& stream) {
    for (const Parameter& parameter : layer.parameters) {
      if (parameter.share == Share::copy) continue;  // counted by the embedding
      kernels::sum_of_squares(stream, parameter.gradient);
    }
    // The two halves of a tied table are added once, on one device or on both ends.
    if (model.tied && layer.kind == LayerKind::embedding) {
      const Tensor gradient = layer.parameters.front().gradient;
      kernels::add(stream, gradient, gradient, gradient);
    }
  });
  profile.update = counted([&](Stream& stream) {
    for (const Parameter& parameter : layer.parameters)
      kernels::update_parameter(stream, parameter, {});
  });
}

void count_actions(LayerProfile& profile,
                   const ModelSpec& model,
                   DType compute,
                   const Extent& extent,
                   StageLayer& layer) {
  Call call;
  call.extent = extent;
  call.dropout = model.dropout;
  const Tensor boundary =
      make_tensor(nullptr, compute, {extent.sequences, extent.length, model.width});
  BackwardCall backward;
  backward.input = boundary;
  if (layer.kind != LayerKind::head) backward.output_gradient = boundary;
  backward.input_gradient = boundary;
  profile.forward = counted(
      [&](Stream& stream) { layer.layer->forward(stream, call, boundary, backward.saved); });
  profile.backward_input =
      counted([&](Stream& stream) { layer.layer->backward_input(stream, call, backward); });
  profile.backward_weight =
      counted([&](Stream& stream) { layer.layer->backward_weight(stream, call, backward); });
}

/// What differs of a block under a policy, from the block that keeps everything.
RecomputedLayer profile_again(const LayerProfile& kept,
                              const ModelSpec& model,
                              const StepShape& shape,
                              std::uint32_t index,
                              Recompute policy) {
  const Extent extent{shape.microbatch_size, shape.sequence_length};
  ParameterAreas areas;
  StageLayer layer = kernels::build_layer(model, index, shape.compute, extent, Share::none, policy,
                                          nullptr, areas);
  LayerProfile counts;
  count_actions(counts, model, shape.compute, extent, layer);
  return {layer.saved_bytes, kernels::forward_workspace(layer, extent),
          kernels::backward_workspace(layer, model, shape.compute, extent),
          counts.backward_input - kept.backward_input};
}

LayerProfile profile_layer(const ModelSpec& model, const StepShape& shape, std::uint32_t index) {
  const Extent extent{shape.microbatch_size, shape.sequence_length};
  // Alone on its stage: a tied head then has its own copy of the table.
  const Share share = kernels::table_share_of(model, {index, index + 1}, index);
  ParameterAreas areas;
  StageLayer layer = kernels::build_layer(model, index, shape.compute, extent, share,
                                          Recompute::none, nullptr, areas);
  LayerProfile profile;
  profile.kind = layer.kind;
  profile.weight_bytes = areas.weights.used();
  profile.gradient_bytes = areas.gradients.used();
  profile.optimizer_bytes = areas.optimizer.used();
  if (share == Share::copy) {
    const ParameterBytes shared =
        kernels::parameter_bytes(model, index, shape.compute, Share::half);
    profile.shared_weight_bytes = profile.weight_bytes - shared.weights;
    profile.shared_optimizer_bytes = profile.optimizer_bytes - shared.optimizer;
  }
  profile.saved_bytes = layer.saved_bytes;
  profile.deferred_bytes = layer.deferred_bytes;
  profile.forward_workspace_bytes = kernels::forward_workspace(layer, extent);
  profile.backward_workspace_bytes =
      kernels::backward_workspace(layer, model, shape.compute, extent);
  profile.output_bytes = kernels::boundary_bytes(model, shape.compute, extent);
  count_actions(profile, model, shape.compute, extent, layer);
  count_parameters(profile, model, layer);
  if (layer.kind == LayerKind::block) {
    profile.selective = profile_again(profile, model, shape, index, Recompute::selective);
    profile.full = profile_again(profile, model, shape, index, Recompute::full);
  }
  return profile;
}

}  // namespace

ModelProfile profile_model(const ModelSpec& model, const StepShape& shape) {
  return {profile_layer(model, shape, 0), profile_layer(model, shape, 1),
          profile_layer(model, shape, model.blocks + 1)};
}

Bytes workspace_bytes(const StageSpec& spec) {
  const Extent extent{spec.shape.microbatch_size, spec.shape.sequence_length};
  Bytes most = 0;
  for (std::uint32_t index = spec.layers.first; index < spec.layers.last; ++index) {
    ParameterAreas areas;
    const StageLayer layer = kernels::build_layer(
        spec.model, index, spec.shape.compute, extent,
        kernels::table_share_of(spec.model, {index, index + 1}, index),
        recompute_of(spec.recompute, spec.model, spec.layers, index), nullptr, areas);
    most = std::max({most, kernels::forward_workspace(layer, extent),
                     kernels::backward_workspace(layer, spec.model, spec.shape.compute, extent)});
  }
  return most;
}

}  // namespace troupe
