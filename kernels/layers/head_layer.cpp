// The final norm, the projection to the vocabulary and the loss. Loss, gradient of the table and
// gradient of the normalised input are one pass over tiles of logits, in F: the logits are never
// kept, and a tied table's gradient is made where its tokens are.
#include <algorithm>

#include "kernels/layers/layer.h"
#include "kernels/ops.h"

namespace troupe::kernels {
namespace {

class Head final : public HeadLayer {
 public:
  Head(const ModelSpec& model, DType compute, std::span<Parameter> parameters)
      : model_(model), compute_(compute) {
    const bool gpt2 = model.family == ModelFamily::gpt2;
    const Parameter& gain = parameter_named(parameters, gpt2 ? "ln_f.weight" : "model.norm.weight");
    kind_ = gpt2 ? NormKind::layer : NormKind::rms;
    gain_ = gain.weight;
    gain_gradient_ = gain.gradient;
    if (gpt2) {
      const Parameter& bias = parameter_named(parameters, "ln_f.bias");
      bias_ = bias.weight;
      bias_gradient_ = bias.gradient;
    }
    const char* own = "lm_head.weight";
    const char* shared = gpt2 ? "wte.weight" : "embed_tokens.weight";
    const Parameter& table = parameter_named(parameters, model.tied ? shared : own);
    table_ = table.compute;
    table_gradient_ = table.gradient;
  }

  Bytes saved_bytes(const Extent& extent) const override {
    Area area;
    Saved saved(*this, extent, area);
    return area.used();
  }
  Bytes deferred_bytes(const Extent&) const override { return 0; }
  Bytes forward_workspace_bytes(const Extent& extent) const override {
    Area training;
    Work work(*this, extent.rows(), training);
    Area predicting;
    Prediction prediction(*this, extent.sequences, predicting);
    return std::max(training.used(), predicting.used());
  }
  Bytes backward_workspace_bytes(const Extent&) const override { return 0; }
  Tensor output(const Extent&, Area) const override { return {}; }

  double forward(Stream& stream, const Call& call, Tensor input, Area saved) override {
    const Saved s(*this, call.extent, saved);
    Area area = call.workspace;
    const Work work(*this, call.extent.rows(), area);
    normalise(stream, work.normalised, as_rows(input), s.mean, s.rstd);
    return head_loss_backward(stream, {{work.normalised, table_, call.targets, work.scratch},
                                       s.normalised_gradient,
                                       table_gradient_,
                                       call.loss_scale});
  }

  double loss(Stream& stream, const Call& call, Tensor input) override {
    Area area = call.workspace;
    const Work work(*this, call.extent.rows(), area);
    normalise(stream, work.normalised, as_rows(input), work.mean, work.rstd);
    return head_loss(stream, {work.normalised, table_, call.targets, work.scratch});
  }

  void logits(Stream& stream, const Call& call, Tensor input, Tensor out) override {
    Area area = call.workspace;
    const Prediction work(*this, call.extent.sequences, area);
    Tensor last = make_tensor(input.data, input.dtype, {call.extent.sequences, model_.width});
    last.row_stride = std::uint64_t{call.extent.length} * model_.width;
    if (last.data != nullptr)
      last.data += std::uint64_t{call.extent.length - 1} * model_.width * size_of(input.dtype);
    copy(stream, work.last, last);
    normalise(stream, work.normalised, work.last, work.mean, work.rstd);
    head_logits(stream, {out, work.normalised, table_, work.scratch});
  }

  void backward_input(Stream& stream, const Call& call, const BackwardCall& backward) override {
    Area area = backward.saved;
    const Saved s(*this, call.extent, area);
    const Tensor x = as_rows(backward.input);
    norm_backward_parameters(
        stream, {kind_, gain_gradient_, bias_gradient_, s.normalised_gradient, x, s.mean, s.rstd});
    norm_backward_input(stream, {kind_, as_rows(backward.input_gradient), s.normalised_gradient, x,
                                 gain_, s.mean, s.rstd, false});
  }

  void backward_weight(Stream&, const Call&, const BackwardCall&) override {}

 private:
  struct Saved {
    Tensor mean, rstd, normalised_gradient;
    Saved(const Head& head, const Extent& extent, Area& area) {
      if (head.kind_ == NormKind::layer) mean = area.tensor(DType::f32, {extent.rows()});
      rstd = area.tensor(DType::f32, {extent.rows()});
      normalised_gradient = area.tensor(head.compute_, {extent.rows(), head.model_.width});
    }
  };

  struct Work {
    Tensor mean, rstd, normalised, scratch;
    Work(const Head& head, std::uint64_t rows, Area& area) {
      if (head.kind_ == NormKind::layer) mean = area.tensor(DType::f32, {rows});
      rstd = area.tensor(DType::f32, {rows});
      normalised = area.tensor(head.compute_, {rows, head.model_.width});
      scratch = kernels::scratch(
          area, head_workspace(rows, head.model_.vocabulary, head.model_.width, head.compute_));
    }
  };

  struct Prediction : Work {
    Tensor last;
    Prediction(const Head& head, std::uint64_t sequences, Area& area)
        : Work(head, sequences, area),
          last(area.tensor(head.compute_, {sequences, head.model_.width})) {}
  };

  void normalise(Stream& stream, Tensor out, Tensor x, Tensor mean, Tensor rstd) const {
    norm_forward(stream, {.kind = kind_,
                          .out = out,
                          .x = x,
                          .residual = {},
                          .sum = {},
                          .gain = gain_,
                          .bias = bias_,
                          .mean = mean,
                          .rstd = rstd,
                          .epsilon = model_.norm_epsilon});
  }

  ModelSpec model_;
  DType compute_;
  NormKind kind_ = NormKind::layer;
  Tensor gain_, bias_, gain_gradient_, bias_gradient_, table_, table_gradient_;
};

}  // namespace

std::unique_ptr<HeadLayer> make_head(const ModelSpec& model,
                                     DType compute,
                                     std::span<Parameter> parameters) {
  return std::make_unique<Head>(model, compute, parameters);
}

}  // namespace troupe::kernels
