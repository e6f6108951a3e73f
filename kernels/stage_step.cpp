// A stage's step: forward, backward in one piece or two, and forward without gradients.
#include <algorithm>

#include "kernels/ops.h"
#include "kernels/stage_body.h"

namespace troupe::kernels {

// --- the step ---

void StageBody::begin_step(Stream& stream, std::uint64_t step, std::uint64_t trained_tokens) {
  EXPECTS(!spec_.weights_only);
  for (const Slab& slab : in_flight_) EXPECTS(!slab.microbatch);
  step_ = step;
  trained_tokens_ = trained_tokens;
  halves_added_ = false;
  std::fill(losses_.begin(), losses_.end(), 0.0);
  weights_contributed_ = false;
  for (const Parameter* parameter : parameters_)
    if (!parameter->written_first) fill(stream, parameter->gradient, 0);
}

Extent StageBody::extent_of(const MicrobatchTokens& tokens, const Tensor& input) const {
  Extent extent{tokens.sequences, spec_.shape.sequence_length};
  if (tokens.sequences == 0) return extent;
  if (has_embedding() && !tokens.tokens.empty())
    extent.length = static_cast<std::uint32_t>(tokens.tokens.size() / tokens.sequences);
  else if (input.rank == 3)
    extent.length = static_cast<std::uint32_t>(input.shape[1]);
  EXPECTS(extent.sequences <= spec_.shape.microbatch_size);
  EXPECTS(extent.length > 0 && extent.length <= spec_.shape.sequence_length);
  return extent;
}

Call StageBody::call_of(const MicrobatchTokens& tokens, const Extent& extent, bool training) const {
  Call call;
  call.extent = extent;
  call.tokens = tokens.tokens;
  call.targets = tokens.targets;
  call.dropout = training ? spec_.model.dropout : 0;
  call.seed = spec_.seed;
  call.step = step_;
  call.first_sample = tokens.first_sample;
  call.loss_scale = trained_tokens_ == 0 ? 0 : 1.0 / static_cast<double>(trained_tokens_);
  call.accumulate = weights_contributed_;
  call.workspace = Area(workspace_, workspace_bytes_);
  return call;
}

double StageBody::run_forward(
    Stream& stream, Slab& slab, const Call& call, const Tensor& input, std::size_t count) {
  if (!has_embedding()) copy(stream, as_rows(kept_input(slab)), as_rows(input));
  double loss = 0;
  for (std::size_t i = 0; i < count; ++i)
    loss = layers_[i].layer->forward(stream, call, input_of(slab, i), saved_area(slab, i));
  return loss;
}

void StageBody::forward(Stream& stream,
                        MicrobatchId m,
                        const MicrobatchTokens& tokens,
                        Tensor input) {
  Slab& slab = take(in_flight_, m);
  slab.tokens = tokens;
  slab.extent = extent_of(tokens, input);
  const double sum =
      run_forward(stream, slab, call_of(tokens, slab.extent, true), input, layers_.size());
  losses_.at(m.index()) = trained_tokens_ == 0 ? 0 : sum / static_cast<double>(trained_tokens_);
}

Tensor StageBody::output(MicrobatchId m) const {
  const auto found = std::find_if(in_flight_.begin(), in_flight_.end(),
                                  [&](const Slab& slab) { return slab.microbatch == m; });
  EXPECTS(found != in_flight_.end());
  return layers_.back().layer->output(found->extent, saved_area(*found, layers_.size() - 1));
}

void StageBody::run_backward(
    Stream& stream, Slab& slab, Slab* deferred, Tensor output_gradient, Tensor input_gradient) {
  EXPECTS(has_embedding() || input_gradient.rank > 0);
  const Bytes boundary = boundary_bytes(spec_.model, spec_.shape.compute, largest());
  // One buffer carries the gradient back through the stage, layer by layer in place.
  const Tensor running =
      has_embedding() ? make_tensor(workspace_, spec_.shape.compute,
                                    {slab.extent.sequences, slab.extent.length, spec_.model.width})
                      : input_gradient;
  Call call = call_of(slab.tokens, slab.extent, true);
  BackwardCall backward;
  backward.output_gradient = has_head() ? Tensor{} : output_gradient;
  backward.input_gradient = running;
  for (std::size_t i = layers_.size(); i-- > 0;) {
    Area workspace(offset(workspace_, boundary), workspace_bytes_ - boundary);
    Area fused = workspace.area(layers_[i].deferred_bytes);
    backward.deferred = deferred != nullptr ? deferred_area(*deferred, i) : fused;
    backward.input = input_of(slab, i);
    backward.saved = saved_area(slab, i);
    call.workspace = Area(offset(workspace_, boundary + layers_[i].deferred_bytes),
                          workspace_bytes_ - boundary - layers_[i].deferred_bytes);
    layers_[i].layer->backward_input(stream, call, backward);
    if (deferred == nullptr) layers_[i].layer->backward_weight(stream, call, backward);
    backward.output_gradient = running;
  }
}

void StageBody::backward(Stream& stream,
                         MicrobatchId m,
                         Tensor output_gradient,
                         Tensor input_gradient) {
  Slab& slab = slab_of(in_flight_, m);
  run_backward(stream, slab, nullptr, output_gradient, input_gradient);
  weights_contributed_ = true;
  slab.microbatch.reset();
}

void StageBody::backward_input(Stream& stream,
                               MicrobatchId m,
                               Tensor output_gradient,
                               Tensor input_gradient) {
  run_backward(stream, slab_of(in_flight_, m), &take(deferred_, m), output_gradient,
               input_gradient);
}

void StageBody::backward_weight(Stream& stream, MicrobatchId m) {
  Slab& slab = slab_of(in_flight_, m);
  Slab& kept = slab_of(deferred_, m);
  const Bytes boundary = boundary_bytes(spec_.model, spec_.shape.compute, largest());
  Call call = call_of(slab.tokens, slab.extent, true);
  BackwardCall backward;
  for (std::size_t i = layers_.size(); i-- > 0;) {
    backward.deferred = deferred_area(kept, i);
    backward.input = input_of(slab, i);
    backward.saved = saved_area(slab, i);
    call.workspace = Area(offset(workspace_, boundary + layers_[i].deferred_bytes),
                          workspace_bytes_ - boundary - layers_[i].deferred_bytes);
    layers_[i].layer->backward_weight(stream, call, backward);
  }
  weights_contributed_ = true;
  slab.microbatch.reset();
  kept.microbatch.reset();
}

// --- without gradients ---

double StageBody::evaluate(Stream& stream,
                           const MicrobatchTokens& tokens,
                           Tensor input,
                           Tensor output) {
  Slab& slab = idle_slab();
  slab.extent = extent_of(tokens, input);
  const Call call = call_of(tokens, slab.extent, false);
  const std::size_t last = layers_.size() - 1;
  run_forward(stream, slab, call, input, has_head() ? last : last + 1);
  if (has_head()) return head().loss(stream, call, input_of(slab, last));
  copy(stream, as_rows(output),
       as_rows(layers_[last].layer->output(slab.extent, saved_area(slab, last))));
  return 0;
}

void StageBody::logits(Stream& stream, const MicrobatchTokens& tokens, Tensor input, Tensor out) {
  EXPECTS(has_head());
  Slab& slab = idle_slab();
  slab.extent = extent_of(tokens, input);
  const Call call = call_of(tokens, slab.extent, false);
  const std::size_t last = layers_.size() - 1;
  run_forward(stream, slab, call, input, last);
  head().logits(stream, call, input_of(slab, last), out);
}

}  // namespace troupe::kernels
