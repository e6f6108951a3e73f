// Token and position tables, then dropout.
#include "kernels/layers/layer.h"
#include "kernels/ops.h"

namespace troupe::kernels {
namespace {

class Embedding final : public Layer {
 public:
  Embedding(const ModelSpec& model, DType compute, std::span<Parameter> parameters)
      : model_(model), compute_(compute) {
    const bool gpt2 = model.family == ModelFamily::gpt2;
    const Parameter& tokens =
        parameter_named(parameters, gpt2 ? "wte.weight" : "embed_tokens.weight");
    tokens_ = tokens.weight;
    tokens_gradient_ = tokens.gradient;
    if (!gpt2) return;
    const Parameter& positions = parameter_named(parameters, "wpe.weight");
    positions_ = positions.weight;
    positions_gradient_ = positions.gradient;
  }

  Bytes saved_bytes(const Extent& extent) const override {
    Area area;
    area.tensor(compute_, {extent.rows(), model_.width});
    return area.used();
  }
  Bytes deferred_bytes(const Extent&) const override { return 0; }
  Bytes forward_workspace_bytes(const Extent&) const override { return 0; }
  Bytes backward_workspace_bytes(const Extent&) const override { return 0; }

  Tensor output(const Extent& extent, Area saved) const override {
    return saved.tensor(compute_, {extent.sequences, extent.length, model_.width});
  }

  double forward(Stream& stream, const Call& call, Tensor, Area saved) override {
    const Tensor out = output(call.extent, saved);
    embedding_forward(stream, {as_rows(out), tokens_, positions_, call.tokens, call.extent.length});
    if (call.dropout > 0) drop(stream, call, out, out);
    return 0;
  }

  void backward_input(Stream& stream, const Call& call, const BackwardCall& backward) override {
    Tensor gradient = backward.output_gradient;
    if (call.dropout > 0) {
      drop(stream, call, backward.input_gradient, gradient);
      gradient = backward.input_gradient;
    }
    embedding_backward(stream, {tokens_gradient_, positions_gradient_, as_rows(gradient),
                                call.tokens, call.extent.length});
  }

  void backward_weight(Stream&, const Call&, const BackwardCall&) override {}

 private:
  void drop(Stream& stream, const Call& call, Tensor out, Tensor x) const {
    const std::uint64_t per_sample = std::uint64_t{call.extent.length} * model_.width;
    dropout(stream, make_tensor(out.data, out.dtype, {call.extent.sequences, per_sample}),
            make_tensor(x.data, x.dtype, {call.extent.sequences, per_sample}),
            DropoutKey{call.seed, call.step, 0, call.first_sample}, call.dropout);
  }

  ModelSpec model_;
  DType compute_;
  Tensor tokens_, tokens_gradient_, positions_, positions_gradient_;
};

}  // namespace

std::unique_ptr<Layer> make_embedding(const ModelSpec& model,
                                      DType compute,
                                      std::span<Parameter> parameters) {
  return std::make_unique<Embedding>(model, compute, parameters);
}

}  // namespace troupe::kernels
