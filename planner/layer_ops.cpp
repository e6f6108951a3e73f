#include "planner/layer_ops.h"

#include <algorithm>

namespace troupe {
namespace {

constexpr double half = 2;  // bytes of a 16-bit element

LayerOp product(double m, double n, double k, double batch = 1) {
  return {m, n, k, batch, half * batch * (m * k + k * n + m * n)};
}

LayerOp moved(double bytes, double launches) {
  return {0, 0, 0, 1, bytes, launches};
}

/// The gradients of a product y = x w: of x (m x k) and of w (k x n).
void add_gradients(LayerOps& ops, const LayerOp& forward) {
  for (LayerOp op : {product(forward.m, forward.k, forward.n, forward.batch),
                     product(forward.k, forward.n, forward.m, forward.batch)}) {
    op.kind = forward.kind;
    op.share = forward.share;
    op.grouped = forward.grouped;
    ops.push_back(op);
  }
}

/// Sizes in elements on one rank.
struct Sizes {
  double tokens;            ///< of this rank's part of the sequence
  double whole;             ///< a tensor of `hidden` that tensor parallelism does not cut
  double queries, context;  ///< widths on this rank
  double qkv;               ///< columns of queries, keys and values
  double expanded;          ///< of latent attention: keys and values from their rank
  double scores;
  double inner;         ///< inside the feed-forward part
  double routed;        ///< rows that this rank's experts compute
  double expert_inner;  ///< inside its experts
};

Sizes sizes_of(const BlockShape& shape, const BlockCut& cut) {
  Sizes out{};
  out.tokens = shape.sequence * cut.microbatch / cut.context;
  out.whole = out.tokens * shape.hidden / (cut.sequence_parallel ? cut.tensor : 1);
  out.queries = shape.heads * shape.query_width() / cut.tensor;
  out.context = shape.heads * shape.context_width() / cut.tensor;
  const double kv = shape.kv_heads / cut.tensor * (shape.query_width() + shape.context_width());
  out.qkv = out.queries + (shape.kv_rank > 0 ? out.queries + out.context : kv);
  out.expanded = out.queries + out.context - shape.heads * shape.rope_width / cut.tensor;
  out.scores = shape.heads * shape.sequence * out.tokens / cut.tensor;
  out.inner = out.tokens * shape.ffn / cut.tensor;
  out.routed = out.tokens * shape.top_k * cut.expert_tensor / cut.tensor * cut.expert_load;
  out.expert_inner = out.routed * shape.expert_ffn / cut.expert_tensor;
  return out;
}

void add_attention_products(LayerOps& out, const BlockShape& shape, const Sizes& sizes) {
  if (shape.kv_rank > 0) {
    if (shape.q_rank > 0) out.push_back(product(sizes.tokens, shape.q_rank, shape.hidden));
    out.push_back(
        product(sizes.tokens, sizes.queries, shape.q_rank > 0 ? shape.q_rank : shape.hidden));
    out.push_back(product(sizes.tokens, shape.kv_rank + shape.rope_width, shape.hidden));
    out.push_back(product(sizes.tokens, sizes.expanded, shape.kv_rank));
  } else {
    out.push_back(product(sizes.tokens, sizes.qkv, shape.hidden));
  }
  out.push_back(product(sizes.tokens, shape.hidden, sizes.context));
}

LayerOps products_of(const BlockShape& shape, const BlockCut& cut, const Sizes& sizes) {
  LayerOps out;
  add_attention_products(out, shape, sizes);
  const double columns = shape.gated ? 2 : 1;  // gate and up are one product
  if (shape.ffn > 0) {
    out.push_back(product(sizes.tokens, columns * shape.ffn / cut.tensor, shape.hidden));
    out.push_back(product(sizes.tokens, shape.hidden, shape.ffn / cut.tensor));
  }
  if (shape.experts > 0) {
    // The router sees each token once: on its own rank, where the sequence is cut.
    const double routing = sizes.whole / shape.hidden;
    LayerOp router = product(routing, shape.experts, shape.hidden);
    router.kind = OpKind::wide_product;
    out.push_back(router);
    const double held = shape.experts / cut.expert;
    const double width = shape.expert_ffn / cut.expert_tensor;
    for (LayerOp op : {product(sizes.routed / held, columns * width, shape.hidden, held),
                       product(sizes.routed / held, shape.hidden, width, held)}) {
      op.grouped = true;
      out.push_back(op);
    }
  }
  return out;
}

/// What is not a product: norms, residual additions with dropout, activation functions, copies
/// between head layouts, rows gathered for the experts and scattered back.
void add_pointwise(BlockOps& out,
                   const BlockShape& shape,
                   const BlockCut& cut,
                   const Sizes& sizes) {
  const double mask = shape.dropout ? 1 : 0;
  // Compiled pointwise ops read and write a tensor once where two eager ones would each do it.
  const double part = cut.fused ? 0.5 : 1;
  const double inner = sizes.inner + sizes.expert_inner;
  const double layouts = sizes.tokens * sizes.context;
  const double norms = shape.norms * sizes.whole;
  const double residuals = 2 * sizes.whole;
  out.forward.push_back(moved(part * 4 * norms, 2 * shape.norms));
  out.forward.push_back(moved(part * (6 + mask) * residuals, 4));
  out.forward.push_back(moved((shape.gated ? 6 : 4) * inner, 2));
  out.forward.push_back(moved(part * 14 * layouts, 4));
  out.backward.push_back(moved(part * 8 * norms, 3 * shape.norms));
  out.backward.push_back(moved(part * (4 + mask) * residuals, 4));
  out.backward.push_back(moved((shape.gated ? 10 : 6) * inner, 3));
  out.backward.push_back(moved(part * 14 * layouts, 5));
  if (shape.experts == 0) return;
  // Read and written in the order of experts, and so back in the order of tokens.
  const double rows = sizes.routed * shape.hidden;
  out.forward.push_back(moved(4 * half * rows, 6));
  out.backward.push_back(moved(4 * half * rows, 6));
}

void add_attention(BlockOps& out,
                   const BlockShape& shape,
                   const BlockCut& cut,
                   const Sizes& sizes) {
  const double pairs = cut.microbatch * shape.heads / cut.tensor;
  const double rows = shape.sequence / cut.context;
  LayerOp scores = product(rows, shape.sequence, shape.query_width(), pairs);
  LayerOp context = product(rows, shape.context_width(), shape.sequence, pairs);
  if (cut.flash_attention) scores.bytes = context.bytes = 2 * half * sizes.tokens * sizes.context;
  const bool fused = cut.flash_attention && cut.causal;
  if (fused) {
    const double busiest = cut.context_balanced ? 1 : 2 - 1 / cut.context;
    for (LayerOp* op : {&scores, &context}) {
      op->kind = OpKind::attention_forward;
      op->share = busiest / 2;
    }
  }
  out.attention_forward = {scores, context};
  add_gradients(out.attention_backward, scores);
  add_gradients(out.attention_backward, context);
  if (cut.flash_attention) {
    out.attention_backward.push_back(scores);  // computed again instead of kept
    for (LayerOp& op : out.attention_backward) {
      if (fused) op.kind = OpKind::attention_backward;
      op.bytes = scores.bytes;
    }
    return;
  }
  out.attention_forward.push_back(moved(4 * sizes.scores, 1));
  out.attention_backward.push_back(moved(6 * sizes.scores, 1));
  if (shape.dropout) {
    out.attention_forward.push_back(moved(5 * sizes.scores, 1));
    out.attention_backward.push_back(moved(5 * sizes.scores, 1));
  }
}

/// Megatron's block with biases and layer norms; gated ones have neither biases nor norm biases.
BlockParameters counted_parameters(const BlockShape& shape) {
  const double queries = shape.heads * shape.query_width();
  const double values = shape.heads * shape.context_width();
  const double kv = shape.kv_heads * (shape.query_width() + shape.context_width());
  BlockParameters out;
  out.cut =
      shape.hidden * (queries + kv + values) + (shape.gated ? 3 : 2) * shape.hidden * shape.ffn;
  if (!shape.gated) out.cut += queries + kv + shape.ffn;
  const double norms = shape.norms * shape.hidden;
  out.whole = shape.gated ? norms : 2 * norms + 2 * shape.hidden;
  out.experts = shape.experts * (shape.gated ? 3 : 2) * shape.hidden * shape.expert_ffn;
  out.whole += shape.experts * shape.hidden;
  return out;
}

BlockParameters exact_parameters(const Architecture& model, std::uint32_t block) {
  const LayerParameters count = block_parameters(model, block);
  const LatentAttention& latent = model.attention.latent;
  BlockParameters out;
  double whole = static_cast<double>(count.norms + count.router);
  const double width = model.width;
  if (model.attention.is_latent())
    whole += width * (latent.q_rank + latent.kv_rank + latent.rope_width) + latent.q_rank +
             latent.kv_rank;
  if (model.attention.out_bias) whole += width;
  if (model.mlp_bias && count.dense_ffn > 0) whole += width;
  out.whole = whole;
  out.experts = static_cast<double>(count.experts);
  out.cut = static_cast<double>(count.total() - count.experts) - whole;
  return out;
}

}  // namespace

BlockShape block_shape(const Architecture& model, std::uint32_t block, double sequence) {
  const AttentionShape& attention = model.attention;
  const LatentAttention& latent = attention.latent;
  BlockShape out;
  out.hidden = model.width;
  out.heads = attention.heads;
  out.kv_heads = attention.kv_heads;
  out.head_width = attention.head_width;
  out.ffn = model.ffn_width;
  out.gated = model.ffn_matrices == 3;
  out.dropout = false;
  out.sequence = sequence;
  out.vocabulary = model.vocabulary;
  out.norms = model.norms_per_block;
  if (attention.is_latent()) {
    out.value_width = latent.value_width;
    out.q_rank = latent.q_rank;
    out.kv_rank = latent.kv_rank;
    out.rope_width = latent.rope_width;
  }
  if (has_experts(model, block)) {
    out.ffn = model.moe.shared_ffn_width;
    out.experts = model.moe.experts;
    out.top_k = model.moe.top_k;
    out.expert_ffn = model.moe.ffn_width;
  }
  out.parameters = exact_parameters(model, block);
  return out;
}

BlockOps block_ops(const BlockShape& shape, const BlockCut& cut) {
  const Sizes sizes = sizes_of(shape, cut);
  BlockOps out;
  for (const LayerOp& op : products_of(shape, cut, sizes)) {
    out.forward.push_back(op);
    add_gradients(out.backward, op);
  }
  add_pointwise(out, shape, cut, sizes);
  add_attention(out, shape, cut, sizes);
  return out;
}

LayerOps output_ops(const BlockShape& shape, const BlockCut& cut) {
  const double tokens = shape.sequence * cut.microbatch / cut.context;
  const double rows = shape.vocabulary / cut.tensor;
  LayerOp logits = product(tokens, rows, shape.hidden);
  logits.kind = OpKind::wide_product;
  LayerOps out{logits};
  add_gradients(out, logits);
  // 16-bit logits to f32, maximum, exponentials, sum, gradient, back to 16 bits.
  out.push_back(moved(30 * tokens * rows, 10));
  return out;
}

LayerOps embedding_ops(const BlockShape& shape, const BlockCut& cut) {
  return {moved(12 * shape.sequence * cut.microbatch / cut.context * shape.hidden, 6)};
}

double total_flops(const LayerOps& ops) {
  double sum = 0;
  for (const LayerOp& op : ops) sum += op.flops();
  return sum;
}

double kept_bytes(const BlockShape& shape, const BlockCut& cut, Recompute recompute) {
  const Sizes sizes = sizes_of(shape, cut);
  if (recompute == Recompute::full) return half * sizes.whole;
  const double mask = shape.dropout ? 1 : 0;
  // Inputs of the norms, of the QKV and of the first feed-forward product, two masks of residuals.
  const double inputs = shape.norms + std::min(shape.norms, 2.0);
  double kept = (inputs * half + 2 * mask) * sizes.whole;
  // Q, K, V, the context, and before them the latent ranks with their norms.
  kept += half * sizes.tokens * (sizes.qkv + sizes.context);
  if (shape.kv_rank > 0)
    kept += half * sizes.tokens * (2 * shape.q_rank + 2 * shape.kv_rank + shape.rope_width);
  // The inner values before and after the activation (and the gate).
  kept += half * (shape.gated ? 3 : 2) * (sizes.inner + sizes.expert_inner);
  // Rows as the experts receive them and as they return them; probabilities in f32.
  if (shape.experts > 0)
    kept += 2 * half * sizes.routed * shape.hidden + 4 * sizes.whole / shape.hidden * shape.experts;
  // Inside a fused kernel one f32 of each row: the logarithm of its sum.
  if (cut.flash_attention)
    return kept + (cut.causal ? 4 * sizes.tokens * shape.heads / cut.tensor : 0);
  if (recompute == Recompute::none) kept += (shape.dropout ? 5 : 2) * sizes.scores;
  return kept;
}

double block_weights(const BlockShape& shape, double tensor, double expert) {
  const BlockParameters counts = shape.parameters ? *shape.parameters : counted_parameters(shape);
  return counts.whole + counts.cut / tensor + counts.experts / expert;
}

double dispatched_bytes(const BlockShape& shape, const BlockCut& cut) {
  return half * sizes_of(shape, cut).routed * shape.hidden;
}

double ring_bytes(const BlockShape& shape, const BlockCut& cut) {
  const double width = shape.kv_rank > 0
                           ? shape.heads * (shape.query_width() + shape.context_width())
                           : shape.kv_heads * (shape.query_width() + shape.context_width());
  return half * shape.sequence * cut.microbatch / cut.context * width / cut.tensor;
}

}  // namespace troupe
