#include "planner/split_costs.h"

namespace troupe {
namespace {

/// The gradient of w in y = x w: as many flops and bytes as the product itself.
LayerOp weight_gradient(const LayerOp& product) {
  LayerOp out = product;
  out.m = product.k;
  out.k = product.m;
  return out;
}

bool is_product(const LayerOp& op) {
  return op.m > 0;
}

}  // namespace

LayerSeconds split_block_seconds(const BlockShape& shape,
                                 const BlockCut& cut,
                                 const AcceleratorRates& rates) {
  const BlockOps ops = block_ops(shape, cut);
  LayerSeconds out;
  out.forward = ops_seconds(ops.forward, rates) + ops_seconds(ops.attention_forward, rates);
  for (const LayerOp& op : ops.forward)
    if (is_product(op)) out.backward_weight += op_seconds(weight_gradient(op), rates);
  out.backward_input = ops_seconds(ops.backward, rates) +
                       ops_seconds(ops.attention_backward, rates) - out.backward_weight;
  return out;
}

LayerSeconds split_output_seconds(const BlockShape& shape,
                                  const BlockCut& cut,
                                  const AcceleratorRates& rates) {
  const LayerOps ops = output_ops(shape, cut);
  Seconds other = 0;
  for (const LayerOp& op : ops)
    if (!is_product(op)) other += op_seconds(op, rates);
  LayerSeconds out;
  const LayerOp& forward = ops.front();
  out.forward = op_seconds(forward, rates) + other / 2;
  out.backward_weight = op_seconds(weight_gradient(forward), rates);
  out.backward_input = ops_seconds(ops, rates) - out.forward - out.backward_weight;
  return out;
}

LayerSeconds split_embedding_seconds(const BlockShape& shape,
                                     const BlockCut& cut,
                                     const AcceleratorRates& rates) {
  LayerSeconds out;
  out.forward = out.backward_weight = ops_seconds(embedding_ops(shape, cut), rates) / 2;
  return out;
}

void add_seconds(LayerSeconds& sum, const LayerSeconds& one, double count) {
  sum.forward += count * one.forward;
  sum.backward_input += count * one.backward_input;
  sum.backward_weight += count * one.backward_weight;
  sum.norm += count * one.norm;
  sum.update += count * one.update;
}

}  // namespace troupe
