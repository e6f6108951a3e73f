#include "planner/architecture_profile.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "planner/layer_ops.h"

namespace troupe {
namespace {

constexpr double f32 = 4;

Bytes whole(double bytes) {
  constexpr Bytes granularity = 64;  // of an arena, devices/arena.h
  return (static_cast<Bytes>(bytes) + granularity - 1) / granularity * granularity;
}

Bytes moved(double bytes) {
  return static_cast<Bytes>(bytes);
}

/// One microbatch on one device.
struct Counter {
  const Architecture& model;
  double element;  ///< bytes of an activation
  bool bf16;
  double sequences, length;
  double tokens() const { return sequences * length; }
  double boundary() const { return tokens() * model.width * element; }
  /// Of a norm's statistics: 1 / sigma of a row, and its mean where one is subtracted.
  double statistics() const { return f32 * tokens() * (model.norm == NormKind::rms_norm ? 1 : 2); }
};

Counter counter_of(const Architecture& model, const StepShape& shape) {
  return {model, static_cast<double>(size_of(shape.compute)), shape.compute == DType::bf16,
          static_cast<double>(shape.microbatch_size), static_cast<double>(shape.sequence_length)};
}

/// Activations in the type of the run.
Bytes elements_bytes(const Counter& of, double elements) {
  return whole(elements * of.element);
}

/// Weights, gradients and Adam's moments of a layer, and the work of N and U over them.
void add_parameters(
    LayerProfile& out, const Counter& of, double all, double matrices, std::uint32_t tensors) {
  out.weight_bytes = whole(f32 * all + (of.bf16 ? 2 * matrices : 0));
  out.gradient_bytes = whole(f32 * all);
  out.optimizer_bytes = whole(2 * f32 * all);
  out.norm = {0, 2 * all, moved(f32 * all), tensors};
  out.update = {0, 14 * all, moved(28 * all + (of.bf16 ? 2 * matrices : 0)), tensors};
}

/// Products with their bytes in the type of the run; `attention` counts the diagonal of the mask.
OpCount count_of(const LayerOps& ops, const Counter& of, double diagonal) {
  OpCount out;
  for (const LayerOp& op : ops) {
    const bool attention =
        op.kind == OpKind::attention_forward || op.kind == OpKind::attention_backward;
    out.matmul_flops += (attention ? diagonal : 1) * op.flops();
    out.bytes_moved += moved(op.bytes * of.element / 2);
    if (op.m > 0 && !attention) ++out.launches;
  }
  return out;
}

LayerOps products_of(const LayerOps& ops) {
  LayerOps out;
  for (const LayerOp& op : ops)
    if (op.m > 0) out.push_back(op);
  return out;
}

/// Elements at the outputs of products.
double output_elements(const LayerOps& products) {
  double sum = 0;
  for (const LayerOp& op : products) sum += op.m * op.n * op.batch;
  return sum;
}

/// Flops outside of products, by the element: as kernels/ count them.
struct Pointwise {
  double norms, inner, pairs, residual;
};

Pointwise pointwise_of(const BlockShape& shape, const Counter& of) {
  Pointwise out{};
  out.norms = shape.norms * of.tokens() * of.model.width;
  out.inner = of.tokens() * (shape.ffn + shape.top_k * shape.expert_ffn);
  out.pairs = of.sequences * shape.heads * of.length * (of.length + 1) / 2;
  out.residual = of.tokens() * of.model.width;
  return out;
}

void add_actions(LayerProfile& out,
                 const BlockShape& shape,
                 const BlockOps& ops,
                 const Counter& of) {
  // The kernels compute t (t + 1) / 2 of the t x t scores, a priced op half of them.
  const double diagonal = (of.length + 1) / of.length;
  const Pointwise work = pointwise_of(shape, of);
  out.forward = count_of(ops.forward, of, diagonal);
  out.forward += count_of(ops.attention_forward, of, diagonal);
  out.forward.other_flops =
      7.5 * work.norms + (shape.gated ? 11 : 14) * work.inner + 6 * work.pairs + work.residual;
  // Norms, rotation or positions, attention, activation, residual.
  out.forward.launches += static_cast<std::uint32_t>(shape.norms) + 4;
  // Of each pair of products the first is the gradient of the input, the second that of weights.
  LayerOps input, weight;
  bool first = true;
  for (const LayerOp& op : ops.backward) {
    (op.m == 0 || first ? input : weight).push_back(op);
    if (op.m > 0) first = !first;
  }
  out.backward_input = count_of(input, of, diagonal);
  out.backward_input += count_of(ops.attention_backward, of, diagonal);
  out.backward_input.other_flops =
      16 * work.norms + (shape.gated ? 16 : 20) * work.inner + 8 * work.pairs;
  out.backward_input.launches += 2 * static_cast<std::uint32_t>(shape.norms) + 6;
  out.backward_weight = count_of(weight, of, diagonal);
  // Gradients are f32; those of biases are sums over the rows of what comes back.
  const double gradients = output_elements(weight);
  out.backward_weight.bytes_moved += moved((f32 - of.element) * gradients);
  if (!of.model.mlp_bias && !of.model.attention.qkv_bias) return;
  const LayerOps products = products_of(ops.forward);
  const double sums = output_elements(products);
  out.backward_weight += {0, sums, moved(sums * of.element), 0};
}

BlockCut cut_of(const Counter& of) {
  BlockCut cut;
  cut.microbatch = of.sequences;
  cut.flash_attention = cut.causal = true;
  return cut;
}

/// What differs of a block that computes again, as kernels/layers/block.cpp does: everything but
/// its last product, of a block with experts its whole forward; or norms and activation.
void add_recomputed(LayerProfile& out,
                    const BlockShape& shape,
                    const LayerOps& products,
                    const Counter& of) {
  const LayerProfile all = recomputed(out, Recompute::full);
  out.full = {all.saved_bytes, all.forward_workspace_bytes, all.backward_workspace_bytes,
              all.again};
  if (shape.experts == 0) out.full->again = out.forward - count_of({products.back()}, of, 1);
  const Pointwise work = pointwise_of(shape, of);
  const Bytes cheap = elements_bytes(of, work.norms + work.inner);
  const double elements = 2 * work.norms + (shape.gated ? 3 : 2) * work.inner;
  const OpCount again{0, 7.5 * work.norms + (shape.gated ? 11 : 14) * work.inner,
                      moved(elements * of.element), static_cast<std::uint32_t>(shape.norms) + 1};
  out.selective = {
      out.saved_bytes - std::min(out.saved_bytes, cheap), out.forward_workspace_bytes + cheap,
      std::max(out.backward_workspace_bytes, out.forward_workspace_bytes) + cheap, again};
}

LayerProfile block_profile(const Counter& of, std::uint32_t block) {
  const BlockShape shape = block_shape(of.model, block, of.length);
  const BlockCut cut = cut_of(of);
  const BlockOps ops = block_ops(shape, cut);
  LayerProfile out;
  out.kind = LayerKind::block;
  add_actions(out, shape, ops, of);
  const LayerOps products = products_of(ops.forward);
  const double all = block_weights(shape, 1);
  const auto count = static_cast<std::uint32_t>(products.size());
  const auto norms = static_cast<std::uint32_t>(shape.norms);
  add_parameters(out, of, all, all - norms * of.model.width, 2 * count + norms);
  // Kept in the type of the run, but for f32: attention's sums, the router's probabilities.
  const double wide = f32 * of.tokens() * (shape.heads + shape.experts);
  const double kept = kept_bytes(shape, cut, Recompute::none) - wide;
  out.saved_bytes = whole(kept * of.element / 2 + wide + shape.norms * of.statistics());
  const double deferred = output_elements(products) * of.element;
  out.deferred_bytes = whole(deferred);
  const double inner = shape.gated ? pointwise_of(shape, of).inner : 0;
  const double routed = of.tokens() * shape.top_k * of.model.width;
  out.output_bytes = whole(of.boundary());
  out.backward_workspace_bytes =
      whole(2 * of.boundary() + deferred + (inner + routed) * of.element);
  if (shape.experts > 0) out.forward_workspace_bytes = whole(routed * of.element);
  add_recomputed(out, shape, products, of);
  return out;
}

/// The ops of a block but for its routed experts; `rest` is the shape without them.
BlockOps ops_without_experts(const BlockShape& shape, const BlockShape& rest, const BlockCut& cut) {
  const BlockOps all = block_ops(shape, cut);
  BlockOps out = block_ops(rest, cut);
  const auto add_router = [](LayerOps& to, const LayerOps& from) {
    for (const LayerOp& op : from)
      if (op.kind == OpKind::wide_product) to.push_back(op);
  };
  add_router(out.forward, all.forward);
  add_router(out.backward, all.backward);
  return out;
}

/// `block`: the profile of the blocks `having` experts.
ExpertPart expert_part(const Counter& of,
                       std::vector<std::uint32_t> having,
                       const LayerProfile& block) {
  const BlockShape shape = block_shape(of.model, having.front(), of.length);
  BlockShape rest = shape;
  rest.experts = rest.top_k = rest.expert_ffn = 0;
  LayerProfile dense;
  add_actions(dense, rest, ops_without_experts(shape, rest, cut_of(of)), of);
  ExpertPart out;
  const auto parameters = static_cast<double>(block_parameters(of.model, having.front()).expert);
  out.blocks = std::move(having);
  out.experts = of.model.moe.experts;
  out.top_k = of.model.moe.top_k;
  out.forward = block.forward - dense.forward;
  out.backward_input = block.backward_input - dense.backward_input;
  out.backward_weight = block.backward_weight - dense.backward_weight;
  LayerProfile one;
  add_parameters(one, of, parameters, parameters, 0);
  out.norm = one.norm;
  out.update = one.update;
  out.gradient_bytes = one.gradient_bytes;
  out.state_bytes = one.weight_bytes + one.gradient_bytes + one.optimizer_bytes;
  // Inner values before and after the activation (and the gate), rows as they come and go.
  const double inner = of.tokens() * shape.top_k * shape.expert_ffn;
  const double routed = of.tokens() * shape.top_k * of.model.width;
  out.kept_bytes = elements_bytes(of, (shape.gated ? 3 : 2) * inner + 2 * routed);
  // The gradients of both products' outputs and of a gate's, and rows in the experts' order.
  const double columns = shape.gated ? 2 : 1;
  out.workspace_bytes =
      elements_bytes(of, (columns * inner + routed) + (shape.gated ? inner : 0) + routed);
  out.exchange_bytes = elements_bytes(of, routed);
  return out;
}

LayerProfile embedding_profile(const Counter& of) {
  LayerProfile out;
  out.kind = LayerKind::embedding;
  const double elements = of.tokens() * of.model.width;
  const double tables = of.model.position == PositionKind::learned ? 2 : 1;
  out.forward = {0, tables > 1 ? elements : 0,
                 moved(elements * (of.element + f32 * tables) + 4 * of.tokens()), 1};
  out.backward_input = {0, tables * elements,
                        moved(elements * (of.element + 2 * f32 * tables) + 4 * of.tokens()), 1};
  const auto all = static_cast<double>(embedding_parameters(of.model).total());
  add_parameters(out, of, all, 0, static_cast<std::uint32_t>(tables));
  if (of.model.tied) {
    // The halves of the table's gradient are added.
    const double table = static_cast<double>(of.model.vocabulary) * of.model.width;
    out.norm += {0, table, moved(3 * f32 * table), 1};
  }
  out.saved_bytes = out.output_bytes = whole(of.boundary());
  out.backward_workspace_bytes = out.output_bytes;
  return out;
}

/// Rows of logits that are in memory at once: the head's loss goes tile by tile (kernels/head.h).
double tile_rows(double rows, std::uint32_t vocabulary) {
  constexpr std::uint64_t elements = std::uint64_t{1} << 20;
  const std::uint64_t fit = std::bit_floor(elements / std::max(vocabulary, 1u));
  return std::min(rows, static_cast<double>(std::clamp<std::uint64_t>(fit, 256, 1024)));
}

LayerProfile head_profile(const Counter& of) {
  LayerProfile out;
  out.kind = LayerKind::head;
  const double width = of.model.width, vocabulary = of.model.vocabulary;
  const double table = vocabulary * width, logits = of.tokens() * vocabulary;
  const double input = of.tokens() * width;
  const double copy = of.bf16 ? 2 : f32;
  // Loss and both gradients of the projection are one pass, in F.
  out.forward = {3 * 2 * of.tokens() * table, 8 * logits + 7 * input,
                 moved(16 * logits + 2 * (copy + f32) * table + 4 * input * of.element), 2};
  out.backward_input = {0, 16 * input, moved(5 * input * of.element), 2};
  const auto own = static_cast<double>(head_parameters(of.model).total());
  add_parameters(out, of, own, of.model.tied ? 0 : table, of.model.tied ? 1 : 2);
  if (of.model.tied) {
    // Alone on its stage it has a copy of the table with its moments, and half of the gradient.
    LayerProfile with_copy;
    add_parameters(with_copy, of, own + table, table, 2);
    out.shared_weight_bytes = whole(f32 * table);
    out.shared_optimizer_bytes = whole(2 * f32 * table);
    out.weight_bytes = with_copy.weight_bytes;
    out.gradient_bytes = with_copy.gradient_bytes;
    out.optimizer_bytes = with_copy.optimizer_bytes;
    out.update = with_copy.update;
  }
  out.output_bytes = whole(of.boundary());
  out.saved_bytes = whole(of.boundary() + of.statistics());
  out.forward_workspace_bytes =
      whole(f32 * tile_rows(of.tokens(), of.model.vocabulary) * vocabulary + 8 * of.tokens() +
            of.boundary() + of.statistics());
  out.backward_workspace_bytes = out.output_bytes;
  return out;
}

std::vector<std::uint32_t> blocks_with_experts(const Architecture& model) {
  std::vector<std::uint32_t> blocks;
  for (std::uint32_t i = 0; i < model.blocks; ++i)
    if (has_experts(model, i)) blocks.push_back(i);
  return blocks;
}

}  // namespace

ModelProfile architecture_profile(const Architecture& model, const StepShape& shape) {
  const Counter of = counter_of(model, shape);
  ModelProfile out{embedding_profile(of), block_profile(of, model.blocks - 1), head_profile(of)};
  const bool last_kind = has_experts(model, model.blocks - 1);
  std::optional<LayerProfile> other;
  for (std::uint32_t i = 0; i < model.blocks && !other; ++i)
    if (has_experts(model, i) != last_kind) other = block_profile(of, i);
  if (auto having = blocks_with_experts(model); !having.empty())
    out.experts = expert_part(of, std::move(having), last_kind ? out.block : *other);
  if (!other) return out;
  for (std::uint32_t i = 0; i < model.blocks; ++i)
    out.blocks.push_back(has_experts(model, i) == last_kind ? out.block : *other);
  return out;
}

}  // namespace troupe
