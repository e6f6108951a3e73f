/// What one transformer block computes on one device of a parallel group, op by op: matrix products
/// by shape, everything else by the bytes it moves, and the bytes kept for backward.
///
/// The list follows Megatron's block (Narayanan et al. 2021, SC'21, section 2.3; Korthikanti et al.
/// 2022, arXiv:2205.05198, sections 4.1 and 4.2): two norms, fused QKV product, attention, output
/// product, two products of the feed-forward part (three with a gate), two residual additions.
/// Latent attention: DeepSeek-V2 (arXiv:2405.04434, section 2.1). Experts: a router, then the
/// feed-forward products of the experts of this rank over the tokens that were sent to it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/architecture.h"
#include "planner/closed_forms.h"

namespace troupe {

/// Parameters of a block by how parallelism divides them.
struct BlockParameters {
  double whole = 0;    ///< on every tensor rank: norms, router, projections down to latent ranks
  double cut = 0;      ///< divided over tensor ranks
  double experts = 0;  ///< of all routed experts: divided over expert ranks
};

/// A decoder block and the table around it, as it is priced. Counts are whole. block_shape()
/// derives it from an Architecture; the defaults are a dense block of Megatron's kind.
struct BlockShape {
  double hidden = 1, heads = 1, kv_heads = 1;
  double ffn = 4;       ///< width of the feed-forward part that every token meets; 0: none
  bool gated = false;   ///< three products (SwiGLU) instead of two; in experts as well
  bool dropout = true;  ///< masks of one byte are written, read and kept
  double sequence = 1, vocabulary = 1;
  double head_width = 0;   ///< of queries and keys; 0: hidden / heads
  double value_width = 0;  ///< of values; 0: head_width
  double q_rank = 0;       ///< latent attention; 0: queries are projected directly
  double kv_rank = 0;      ///< latent attention; 0: there is none
  double rope_width = 0;   ///< of latent attention: the part of the keys that all heads share
  double norms = 2;
  double experts = 0, top_k = 0, expert_ffn = 0;
  /// Exact; nothing: counted from the widths.
  std::optional<BlockParameters> parameters = std::nullopt;
  double query_width() const { return head_width > 0 ? head_width : hidden / heads; }
  double context_width() const { return value_width > 0 ? value_width : query_width(); }
};

/// Block `block` (0 is the first) of a model on sequences of this length, without dropout. A shared
/// expert is the part that every token meets.
BlockShape block_shape(const Architecture& model, std::uint32_t block, double sequence);

/// How a block is cut and run.
struct BlockCut {
  double microbatch = 1;           ///< sequences
  double tensor = 1;               ///< ranks; divides heads and ffn
  bool sequence_parallel = false;  ///< norms and residuals are cut along the sequence
  bool flash_attention = false;    ///< scores are never written to memory
  double context = 1;              ///< ranks; each holds a part of every sequence
  /// With flash_attention: one fused kernel that leaves out the masked half, at the device's rates
  /// for attention. Else its two products are priced by their shapes, masked half and all.
  bool causal = false;
  /// With context parallelism and a causal mask: whether each rank has as much to do as the others.
  /// Contiguous parts leave the last rank 2 - 1/context times the mean.
  bool context_balanced = true;
  double expert = 1;         ///< ranks that divide the routed experts among them
  double expert_tensor = 1;  ///< ranks that cut each expert; divides `tensor`
  double expert_load = 1;    ///< tokens of the busiest rank over the mean: routing and padding
  bool fused = false;        ///< pointwise ops are compiled: each tensor is moved once
};

enum class OpKind : std::uint8_t {
  product,             ///< in the precision of the run
  wide_product,        ///< kept in 16 bits where others are narrower
  attention_forward,   ///< inside one fused kernel, in 16 bits
  attention_backward,  ///< likewise
};

/// batch products of (m x k) by (k x n); with m = 0 an op that only moves `bytes`.
struct LayerOp {
  double m = 0, n = 0, k = 0, batch = 1;
  double bytes = 0;
  double launches = 1;  ///< kernels
  OpKind kind = OpKind::product;
  double share = 1;      ///< of the product that is computed: a causal mask leaves half
  bool grouped = false;  ///< of experts: one kernel takes matrices of any number of rows
  double flops() const { return 2 * m * n * k * batch * share; }
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
/// Parameters of one block on one rank.
double block_weights(const BlockShape& shape, double tensor, double expert = 1);

/// Bytes in 16 bits that one rank sends to the experts of a group, before what stays at home.
double dispatched_bytes(const BlockShape& shape, const BlockCut& cut);
/// Bytes of keys and values in 16 bits that a rank of a context group passes on in one ring step.
double ring_bytes(const BlockShape& shape, const BlockCut& cut);

}  // namespace troupe
