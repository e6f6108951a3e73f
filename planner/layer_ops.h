/// What one transformer block computes on one device of a tensor-parallel group, op by op: matrix
/// products by shape, everything else by the bytes it moves, and the bytes kept for backward.
///
/// The list follows Megatron's block (Narayanan et al. 2021, SC'21, section 2.3; Korthikanti et al.
/// 2022, arXiv:2205.05198, sections 4.1 and 4.2): two norms, fused QKV product, attention, output
/// product, two products of the feed-forward part (three with a gate), two residual additions.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/closed_forms.h"

namespace troupe {

/// A dense decoder block and the table around it. Counts are whole.
struct BlockShape {
  double hidden = 1, heads = 1, kv_heads = 1;
  double ffn = 4;       ///< width of the feed-forward part
  bool gated = false;   ///< three products (SwiGLU) instead of two
  bool dropout = true;  ///< masks of one byte are written, read and kept
  double sequence = 1, vocabulary = 1;
};

/// How a block is cut and run.
struct BlockCut {
  double microbatch = 1;           ///< sequences
  double tensor = 1;               ///< ranks; divides heads and ffn
  bool sequence_parallel = false;  ///< norms and residuals are cut along the sequence
  bool flash_attention = false;    ///< scores are never written to memory
};

/// batch products of (m x k) by (k x n) in 16 bits; with m = 0 an op that only moves `bytes`.
struct LayerOp {
  double m = 0, n = 0, k = 0, batch = 1;
  double bytes = 0;
  double launches = 1;  ///< kernels
  double flops() const { return 2 * m * n * k * batch; }
};

using LayerOps = std::vector<LayerOp>;

/// Forward and backward of one block, the core of attention (scores, softmax, dropout, context)
/// apart, for it is what selective recomputation repeats.
struct BlockOps {
  LayerOps forward, attention_forward;
  LayerOps backward, attention_backward;
};
BlockOps block_ops(const BlockShape& shape, const BlockCut& cut);
/// Products and losses of the output layer: forward and backward.
LayerOps output_ops(const BlockShape& shape, const BlockCut& cut);
/// Lookup, addition of positions and the scattered gradient: forward and backward.
LayerOps embedding_ops(const BlockShape& shape, const BlockCut& cut);

double total_flops(const LayerOps& ops);

/// Bytes that a block keeps of one microbatch from forward to backward. For ffn = 4 hidden, equal
/// heads, dropout and no flash attention: table 2 of Korthikanti et al.
double kept_bytes(const BlockShape& shape, const BlockCut& cut, Recompute recompute);
/// Weights and biases of one block on one tensor rank, norms whole.
double block_weights(const BlockShape& shape, double tensor);

}  // namespace troupe
