// A transformer block: x1 = x + proj(attention(norm(x))), out = x1 + down(act(up(norm(x1)))).
// The two families differ in what they bind (norm kind, weight layout, biases) and in two ops
// (rotary positions, activation); the flow is written once.
//
// Backward is cut where a split schedule cuts it: backward_input walks the chain of input gradients
// and leaves the gradients at the outputs of the four products in `deferred`; backward_weight turns
// those into weight gradients.
//
// What a block does not keep lies at the front of the workspace: in F until the next layer runs, in
// a backward from the start of backward_input, which makes it again, to the end of backward_weight.
#include <algorithm>

#include "kernels/layers/layer.h"
#include "kernels/layers/linear.h"
#include "kernels/ops.h"

namespace troupe::kernels {
namespace {

struct Norm {
  NormKind kind = NormKind::layer;
  Tensor gain, bias, gain_gradient, bias_gradient;  ///< bias: rank 0 for RMSNorm
};

/// What the block is made of, whatever the family.
struct BlockParts {
  Norm norm1, norm2;
  Linear qkv, proj, up, down;
};

Tensor of_rows(Area& area, DType dtype, const Extent& extent, std::uint64_t columns) {
  return area.tensor(dtype, {extent.rows(), columns});
}

/// Columns [first, first + count) of a matrix.
Tensor columns(const Tensor& matrix, std::uint64_t first, std::uint64_t count) {
  Tensor slice = matrix;
  if (slice.data != nullptr) slice.data += first * size_of(matrix.dtype);
  slice.shape[1] = count;
  return slice;
}

class Block final : public Layer {
 public:
  Block(const ModelSpec& model,
        DType compute,
        std::uint32_t layer,
        Recompute recompute,
        std::span<Parameter> parameters)
      : model_(model), compute_(compute), layer_(layer), recompute_(recompute) {
    if (model.family == ModelFamily::gpt2)
      bind_gpt2(parameters);
    else
      bind_llama(parameters);
  }

  Bytes saved_bytes(const Extent& extent) const override {
    Area area, again;
    Saved saved(*this, extent, area, again);
    return area.used();
  }
  Bytes deferred_bytes(const Extent& extent) const override {
    Area area;
    Deferred deferred(*this, extent, area);
    return area.used();
  }
  Bytes forward_workspace_bytes(const Extent& extent) const override {
    Area kept, area;
    Saved saved(*this, extent, kept, area);
    forward_scratch(extent, area);
    return area.used();
  }
  Bytes backward_workspace_bytes(const Extent& extent) const override {
    Area kept, area;
    Saved saved(*this, extent, kept, area);
    Work work(*this, extent, area);
    return area.used();
  }

  double forward(Stream& stream, const Call& call, Tensor input, Area saved) override;
  Tensor output(const Extent& extent, Area saved) const override {
    Area again;
    const Saved kept(*this, extent, saved, again);
    Tensor out = kept.out;
    return make_tensor(out.data, out.dtype, {extent.sequences, extent.length, model_.width});
  }
  void backward_input(Stream& stream, const Call& call, const BackwardCall& backward) override;
  void backward_weight(Stream& stream, const Call& call, const BackwardCall& backward) override;

 private:
  std::uint64_t kv_width() const { return std::uint64_t{model_.head_width()} * model_.kv_heads; }
  std::uint64_t qkv_width() const { return model_.width + 2 * kv_width(); }
  bool llama() const { return model_.family == ModelFamily::llama; }
  std::uint64_t up_width() const {
    return llama() ? 2 * std::uint64_t{model_.ffn_width} : model_.ffn_width;
  }

  /// Read by B or W: kept from F, or made again in front of the workspace.
  struct Saved {
    Tensor mean1, rstd1, n1, qkv, lse, attended, middle, mean2, rstd2, n2, hidden, activated, out;
    Saved(const Block& block, const Extent& extent, Area& kept, Area& again) {
      const ModelSpec& model = block.model_;
      const DType type = block.compute_;
      const std::uint64_t rows = extent.rows();
      Area& cheap = block.recompute_ == Recompute::none ? kept : again;
      Area& dear = block.recompute_ == Recompute::full ? again : kept;
      if (!block.llama()) {
        mean1 = dear.tensor(DType::f32, {rows});
        mean2 = dear.tensor(DType::f32, {rows});
      }
      rstd1 = dear.tensor(DType::f32, {rows});
      rstd2 = dear.tensor(DType::f32, {rows});
      lse = dear.tensor(DType::f32, {extent.sequences, model.heads, extent.length});
      n1 = of_rows(cheap, type, extent, model.width);
      qkv = of_rows(dear, type, extent, block.qkv_width());
      attended = of_rows(dear, type, extent, model.width);
      middle = of_rows(dear, type, extent, model.width);
      n2 = of_rows(cheap, type, extent, model.width);
      hidden = of_rows(dear, type, extent, block.up_width());
      activated = of_rows(cheap, type, extent, model.ffn_width);
      out = of_rows(kept, type, extent, model.width);
    }
  };

  /// Gradients at the outputs of the four products, from I to W.
  struct Deferred {
    Tensor down, up, proj, qkv;
    Deferred(const Block& block, const Extent& extent, Area& area) {
      down = of_rows(area, block.compute_, extent, block.model_.width);
      up = of_rows(area, block.compute_, extent, block.up_width());
      proj = of_rows(area, block.compute_, extent, block.model_.width);
      qkv = of_rows(area, block.compute_, extent, block.qkv_width());
    }
  };

  /// Used within one backward.
  struct Work {
    Tensor activated;  ///< gradient of the activation's output; llama only (gpt2: in place)
    Tensor branch;     ///< gradient at the outputs of the norms and of attention
    Tensor scratch;
    Work(const Block& block, const Extent& extent, Area& area) {
      if (block.llama()) activated = of_rows(area, block.compute_, extent, block.model_.ffn_width);
      branch = of_rows(area, block.compute_, extent, block.model_.width);
      scratch = block.backward_scratch(extent, area);
    }
  };

  AttentionShape attention_shape(const Extent& extent) const {
    return {extent.sequences, extent.length, model_.heads, model_.kv_heads, model_.head_width()};
  }
  Bytes forward_scratch_bytes(const Extent& extent) const {
    const std::uint64_t rows = extent.rows();
    const BlockParts& p = parts_;
    return std::max({p.qkv.forward_workspace(rows), p.proj.forward_workspace(rows),
                     p.up.forward_workspace(rows), p.down.forward_workspace(rows),
                     attention_workspace(attention_shape(extent), compute_, false)});
  }
  Tensor forward_scratch(const Extent& extent, Area& area) const {
    return scratch(area, forward_scratch_bytes(extent));
  }
  Tensor backward_scratch(const Extent& extent, Area& area) const {
    const std::uint64_t rows = extent.rows();
    const BlockParts& p = parts_;
    const Bytes again = recompute_ == Recompute::none ? 0 : forward_scratch_bytes(extent);
    return scratch(area,
                   std::max({p.qkv.backward_workspace(rows), p.proj.backward_workspace(rows),
                             p.up.backward_workspace(rows), p.down.backward_workspace(rows),
                             attention_workspace(attention_shape(extent), compute_, true), again}));
  }

  Tensor q_of(const Tensor& qkv) const { return columns(qkv, 0, model_.width); }
  Tensor k_of(const Tensor& qkv) const { return columns(qkv, model_.width, kv_width()); }
  Tensor v_of(const Tensor& qkv) const {
    return columns(qkv, model_.width + kv_width(), kv_width());
  }
  Tensor gate_of(const Tensor& up) const { return columns(up, 0, model_.ffn_width); }
  Tensor up_of(const Tensor& up) const { return columns(up, model_.ffn_width, model_.ffn_width); }

  void bind_gpt2(std::span<Parameter> parameters);
  void bind_llama(std::span<Parameter> parameters);
  /// The forward but for its last product.
  void run_to_activation(
      Stream& stream, const Call& call, const Saved& s, const Tensor& x, const Tensor& work) const;
  /// What the policy did not keep.
  void make_again(
      Stream& stream, const Call& call, const Saved& s, const Tensor& x, const Tensor& work) const;
  void rotate(Stream& stream, const Call& call, const Tensor& qkv, bool inverse) const;
  /// out = norm(x), or with `middle` (rank > 0): middle += x, out = norm(middle).
  void forward_norm(Stream& stream,
                    const Norm& norm,
                    Tensor out,
                    Tensor x,
                    Tensor middle,
                    Tensor mean,
                    Tensor rstd) const;
  void backward_norm(Stream& stream,
                     const Norm& norm,
                     Tensor dx,
                     Tensor dy,
                     Tensor x,
                     Tensor mean,
                     Tensor rstd) const;
  /// `which`: 0 after attention, 1 after the MLP.
  void drop(Stream& stream, const Call& call, Tensor out, Tensor x, std::uint32_t which) const;

  ModelSpec model_;
  DType compute_;
  std::uint32_t layer_;
  Recompute recompute_;
  BlockParts parts_;
};

void Block::bind_gpt2(std::span<Parameter> parameters) {
  const auto norm = [&](const char* gain, const char* bias) {
    const Parameter& g = parameter_named(parameters, gain);
    const Parameter& b = parameter_named(parameters, bias);
    return Norm{NormKind::layer, g.weight, b.weight, g.gradient, b.gradient};
  };
  const auto linear = [&](const char* weight, const char* bias) {
    const Parameter& w = parameter_named(parameters, weight);
    const Parameter& b = parameter_named(parameters, bias);
    return Linear{w.compute, w.gradient, b.weight, b.gradient, false};
  };
  parts_.norm1 = norm("ln_1.weight", "ln_1.bias");
  parts_.norm2 = norm("ln_2.weight", "ln_2.bias");
  parts_.qkv = linear("attn.c_attn.weight", "attn.c_attn.bias");
  parts_.proj = linear("attn.c_proj.weight", "attn.c_proj.bias");
  parts_.up = linear("mlp.c_fc.weight", "mlp.c_fc.bias");
  parts_.down = linear("mlp.c_proj.weight", "mlp.c_proj.bias");
}

void Block::bind_llama(std::span<Parameter> parameters) {
  const auto norm = [&](const char* gain) {
    const Parameter& g = parameter_named(parameters, gain);
    return Norm{NormKind::rms, g.weight, {}, g.gradient, {}};
  };
  const auto linear = [&](const char* first, std::uint64_t rows) {
    const Parameter& w = parameter_named(parameters, first);
    return Linear{stacked(w.compute, rows), stacked(w.gradient, rows), {}, {}, true};
  };
  parts_.norm1 = norm("input_layernorm.weight");
  parts_.norm2 = norm("post_attention_layernorm.weight");
  parts_.qkv = linear("q_proj.weight", qkv_width());
  parts_.proj = linear("o_proj.weight", model_.width);
  parts_.up = linear("gate_proj.weight", up_width());
  parts_.down = linear("down_proj.weight", model_.width);
}

void Block::forward_norm(Stream& stream,
                         const Norm& norm,
                         Tensor out,
                         Tensor x,
                         Tensor middle,
                         Tensor mean,
                         Tensor rstd) const {
  norm_forward(stream, {norm.kind, out, x, middle, middle, norm.gain, norm.bias, mean, rstd,
                        model_.norm_epsilon});
}

void Block::backward_norm(Stream& stream,
                          const Norm& norm,
                          Tensor dx,
                          Tensor dy,
                          Tensor x,
                          Tensor mean,
                          Tensor rstd) const {
  norm_backward_parameters(stream,
                           {norm.kind, norm.gain_gradient, norm.bias_gradient, dy, x, mean, rstd});
  norm_backward_input(stream, {norm.kind, dx, dy, x, norm.gain, mean, rstd, true});
}

void Block::rotate(Stream& stream, const Call& call, const Tensor& qkv, bool inverse) const {
  if (!llama()) return;
  const Tensor queries_and_keys = columns(qkv, 0, model_.width + kv_width());
  rope(stream,
       {queries_and_keys, call.extent.length, model_.head_width(), model_.rope_theta, inverse});
}

void Block::drop(
    Stream& stream, const Call& call, Tensor out, Tensor x, std::uint32_t which) const {
  const std::uint64_t per_sample = std::uint64_t{call.extent.length} * model_.width;
  const DropoutKey key{call.seed, call.step, 2 * layer_ + which, call.first_sample};
  dropout(stream, make_tensor(out.data, out.dtype, {call.extent.sequences, per_sample}),
          make_tensor(x.data, x.dtype, {call.extent.sequences, per_sample}), key, call.dropout);
}

void Block::run_to_activation(
    Stream& stream, const Call& call, const Saved& s, const Tensor& x, const Tensor& work) const {
  forward_norm(stream, parts_.norm1, s.n1, x, {}, s.mean1, s.rstd1);
  parts_.qkv.forward(stream, s.qkv, s.n1, work);
  rotate(stream, call, s.qkv, false);
  attention_forward(stream, {attention_shape(call.extent), s.attended, q_of(s.qkv), k_of(s.qkv),
                             v_of(s.qkv), s.lse, work});
  parts_.proj.forward(stream, s.middle, s.attended, work);
  if (call.dropout > 0) drop(stream, call, s.middle, s.middle, 0);

  forward_norm(stream, parts_.norm2, s.n2, x, s.middle, s.mean2, s.rstd2);
  if (llama()) {
    parts_.up.forward(stream, s.hidden, s.n2, work);
    swiglu_forward(stream, s.activated, gate_of(s.hidden), up_of(s.hidden));
  } else {
    parts_.up.forward(stream, s.hidden, s.n2, work, {MatmulEpilogue::Kind::gelu, s.activated});
  }
}

void Block::make_again(
    Stream& stream, const Call& call, const Saved& s, const Tensor& x, const Tensor& work) const {
  if (recompute_ == Recompute::full) run_to_activation(stream, call, s, x, work);
  if (recompute_ != Recompute::selective) return;
  forward_norm(stream, parts_.norm1, s.n1, x, {}, s.mean1, s.rstd1);
  // The kept sum is already in it: a norm with a residual normalises the rounded sum.
  forward_norm(stream, parts_.norm2, s.n2, s.middle, {}, s.mean2, s.rstd2);
  if (llama())
    swiglu_forward(stream, s.activated, gate_of(s.hidden), up_of(s.hidden));
  else
    gelu_forward(stream, s.activated, s.hidden);
}

double Block::forward(Stream& stream, const Call& call, Tensor input, Area saved) {
  Area area = call.workspace;
  const Saved s(*this, call.extent, saved, area);
  const Tensor work = forward_scratch(call.extent, area);
  run_to_activation(stream, call, s, as_rows(input), work);
  if (call.dropout > 0) {
    parts_.down.forward(stream, s.out, s.activated, work);
    drop(stream, call, s.out, s.out, 1);
    add(stream, s.out, s.middle, s.out);
  } else {
    parts_.down.forward(stream, s.out, s.activated, work, {MatmulEpilogue::Kind::add, s.middle});
  }
  return 0;
}

void Block::backward_input(Stream& stream, const Call& call, const BackwardCall& backward) {
  Area saved = backward.saved;
  Area deferred = backward.deferred;
  Area area = call.workspace;
  const Saved s(*this, call.extent, saved, area);
  const Deferred d(*this, call.extent, deferred);
  const Work work(*this, call.extent, area);
  make_again(stream, call, s, as_rows(backward.input), work.scratch);
  const Tensor dy = as_rows(backward.output_gradient);
  const Tensor dx = as_rows(backward.input_gradient);
  const auto branch_gradient = [&](Tensor out, Tensor residual, std::uint32_t which) {
    if (call.dropout > 0)
      drop(stream, call, out, residual, which);
    else
      copy(stream, out, residual);
  };

  branch_gradient(d.down, dy, 1);
  if (llama()) {
    parts_.down.backward_input(stream, work.activated, d.down, work.scratch);
    swiglu_backward(stream, gate_of(d.up), up_of(d.up), work.activated, gate_of(s.hidden),
                    up_of(s.hidden));
  } else {
    parts_.down.backward_input(stream, d.up, d.down, work.scratch,
                               {MatmulEpilogue::Kind::gelu_gradient, s.hidden});
  }
  parts_.up.backward_input(stream, work.branch, d.up, work.scratch);
  if (dx.data != dy.data) copy(stream, dx, dy);
  backward_norm(stream, parts_.norm2, dx, work.branch, s.middle, s.mean2, s.rstd2);

  branch_gradient(d.proj, dx, 0);
  parts_.proj.backward_input(stream, work.branch, d.proj, work.scratch);
  attention_backward(
      stream, {attention_shape(call.extent), q_of(d.qkv), k_of(d.qkv), v_of(d.qkv), work.branch,
               s.attended, q_of(s.qkv), k_of(s.qkv), v_of(s.qkv), s.lse, work.scratch});
  rotate(stream, call, d.qkv, true);
  parts_.qkv.backward_input(stream, work.branch, d.qkv, work.scratch);
  backward_norm(stream, parts_.norm1, dx, work.branch, as_rows(backward.input), s.mean1, s.rstd1);
}

void Block::backward_weight(Stream& stream, const Call& call, const BackwardCall& backward) {
  Area saved = backward.saved;
  Area deferred = backward.deferred;
  Area area = call.workspace;
  const Saved s(*this, call.extent, saved, area);
  const Deferred d(*this, call.extent, deferred);
  const Tensor work = backward_scratch(call.extent, area);
  parts_.down.backward_weight(stream, d.down, s.activated, work, call.accumulate);
  parts_.up.backward_weight(stream, d.up, s.n2, work, call.accumulate);
  parts_.proj.backward_weight(stream, d.proj, s.attended, work, call.accumulate);
  parts_.qkv.backward_weight(stream, d.qkv, s.n1, work, call.accumulate);
}

}  // namespace

std::unique_ptr<Layer> make_block(const ModelSpec& model,
                                  DType compute,
                                  std::uint32_t layer,
                                  Recompute recompute,
                                  std::span<Parameter> parameters) {
  return std::make_unique<Block>(model, compute, layer, recompute, parameters);
}

}  // namespace troupe::kernels
