#include "planner/layer_ops.h"

namespace troupe {
namespace {

constexpr double half = 2;  // bytes of a 16-bit element

LayerOp product(double m, double n, double k, double batch = 1) {
  return {m, n, k, batch, half * batch * (m * k + k * n + m * n), 1};
}

LayerOp moved(double bytes, double launches) {
  return {0, 0, 0, 1, bytes, launches};
}

/// The gradients of a product y = x w: of x (m x k) and of w (k x n).
void add_gradients(LayerOps& ops, const LayerOp& forward) {
  ops.push_back(product(forward.m, forward.k, forward.n, forward.batch));
  ops.push_back(product(forward.k, forward.n, forward.m, forward.batch));
}

/// Sizes in elements on one rank.
struct Sizes {
  double tokens, whole, cut, qkv, scores, inner, head;
};

Sizes sizes_of(const BlockShape& shape, const BlockCut& cut) {
  Sizes out{};
  out.tokens = shape.sequence * cut.microbatch;
  out.whole = out.tokens * shape.hidden / (cut.sequence_parallel ? cut.tensor : 1);
  out.cut = out.tokens * shape.hidden / cut.tensor;
  out.head = shape.hidden / shape.heads;
  out.qkv = (shape.heads + 2 * shape.kv_heads) * out.head / cut.tensor;
  out.scores = shape.heads * shape.sequence * out.tokens / cut.tensor;
  out.inner = out.tokens * shape.ffn / cut.tensor;
  return out;
}

}  // namespace

BlockOps block_ops(const BlockShape& shape, const BlockCut& cut) {
  const Sizes sizes = sizes_of(shape, cut);
  const double first_ffn = (shape.gated ? 2 : 1) * shape.ffn / cut.tensor;
  const double mask = shape.dropout ? 1 : 0;
  BlockOps out;
  const LayerOps products{product(sizes.tokens, sizes.qkv, shape.hidden),
                          product(sizes.tokens, shape.hidden, shape.hidden / cut.tensor),
                          product(sizes.tokens, first_ffn, shape.hidden),
                          product(sizes.tokens, shape.hidden, shape.ffn / cut.tensor)};
  for (const LayerOp& op : products) {
    out.forward.push_back(op);
    add_gradients(out.backward, op);
  }
  // Two norms, two residual additions with dropout, the activation, copies between head layouts.
  out.forward.push_back(moved(2 * 4 * sizes.whole, 4));
  out.forward.push_back(moved(2 * (6 + mask) * sizes.whole, 4));
  out.forward.push_back(moved((shape.gated ? 6 : 4) * sizes.inner, 2));
  out.forward.push_back(moved(14 * sizes.cut, 4));
  out.backward.push_back(moved(2 * 8 * sizes.whole, 6));
  out.backward.push_back(moved(2 * (4 + mask) * sizes.whole, 4));
  out.backward.push_back(moved((shape.gated ? 10 : 6) * sizes.inner, 3));
  out.backward.push_back(moved(14 * sizes.cut, 5));

  const double pairs = cut.microbatch * shape.heads / cut.tensor;
  LayerOp scores = product(shape.sequence, shape.sequence, sizes.head, pairs);
  LayerOp context = product(shape.sequence, sizes.head, shape.sequence, pairs);
  if (cut.flash_attention) scores.bytes = context.bytes = 4 * sizes.cut;
  out.attention_forward = {scores, context};
  add_gradients(out.attention_backward, scores);
  add_gradients(out.attention_backward, context);
  if (cut.flash_attention) {
    for (LayerOp& op : out.attention_backward) op.bytes = 4 * sizes.cut;
    out.attention_backward.push_back(scores);  // computed again instead of kept
    return out;
  }
  out.attention_forward.push_back(moved(4 * sizes.scores, 1));
  out.attention_backward.push_back(moved(6 * sizes.scores, 1));
  if (shape.dropout) {
    out.attention_forward.push_back(moved(5 * sizes.scores, 1));
    out.attention_backward.push_back(moved(5 * sizes.scores, 1));
  }
  return out;
}

LayerOps output_ops(const BlockShape& shape, const BlockCut& cut) {
  const double tokens = shape.sequence * cut.microbatch;
  const double rows = shape.vocabulary / cut.tensor;
  LayerOps out{product(tokens, rows, shape.hidden)};
  add_gradients(out, LayerOp(out.front()));
  // 16-bit logits to f32, maximum, exponentials, sum, gradient, back to 16 bits.
  out.push_back(moved(30 * tokens * rows, 10));
  return out;
}

LayerOps embedding_ops(const BlockShape& shape, const BlockCut& cut) {
  return {moved(12 * shape.sequence * cut.microbatch * shape.hidden, 6)};
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
  // Inputs of two norms, of the QKV and of the first feed-forward product, two masks of residuals.
  const double shared = (4 * half + 2 * mask) * sizes.whole;
  // Q, K, V, the context; the inner values before and after the activation (and the gate).
  const double own =
      half * (sizes.tokens * sizes.qkv + sizes.cut) + half * (shape.gated ? 3 : 2) * sizes.inner;
  const bool scores = recompute == Recompute::none && !cut.flash_attention;
  return shared + own + (scores ? (shape.dropout ? 5 : 2) * sizes.scores : 0);
}

double block_weights(const BlockShape& shape, double tensor) {
  const double head = shape.hidden / shape.heads;
  const double attention = shape.hidden * (2 * shape.heads + 2 * shape.kv_heads) * head / tensor;
  const double ffn = (shape.gated ? 3 : 2) * shape.hidden * shape.ffn / tensor;
  const double biases =
      shape.gated ? 0 : (3 * shape.hidden + shape.ffn) / tensor + 2 * shape.hidden;
  return attention + ffn + biases + (shape.gated ? 2 : 4) * shape.hidden;
}

}  // namespace troupe
