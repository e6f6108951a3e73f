/// How one lane of attention's workspace is laid out: offsets in bytes, all multiples of 64.
#pragma once

#include "devices/arena.h"
#include "devices/compute_pool.h"
#include "kernels/attention.h"
#include "kernels/cpu/product.h"

namespace troupe::kernels {

/// Query rows of one block: multiples of what products take at once. Small blocks leave little to
/// do above the diagonal; backward adds a block's part to all of dk and dv, which few rows do not
/// pay for.
inline constexpr std::uint64_t attention_forward_block = 24;
inline constexpr std::uint64_t attention_backward_block = 48;
/// New positions of one block of attention_decode.
inline constexpr std::uint64_t attention_block = 64;

/// f32 elements from one row of scores to the next: whole cache lines, and rarely a power of two
/// apart, so that a column does not crowd one set of the first-level cache.
constexpr std::uint64_t attention_score_stride(std::uint64_t keys) {
  return (keys + 15) / 16 * 16 + 16;
}

/// What products read again and again is packed for them once. Everything is f32: bf16 inputs are
/// widened, a head to be packed or a block of rows at a time, and bf16 results rounded once.
struct AttentionLane {
  Bytes scores = 0;            ///< (block, T): scores, then what is made of them
  Bytes keys = 0, values = 0;  ///< packed: k^T and v, in backward v^T
  Bytes wide = 0;              ///< (T, head width): a head on its way to be packed; bf16
  Bytes q = 0, out = 0;        ///< (block, head width); bf16
  Bytes gradients = 0;         ///< (block, T): of the scores; backward
  Bytes keys_by_row = 0;       ///< packed: k; backward
  Bytes dk = 0, dv = 0;        ///< (T, head width); backward
  Bytes dout = 0, dq = 0;      ///< (block, head width); backward of bf16
  Bytes bytes = 0;             ///< of the whole lane
};

inline AttentionLane attention_lane(const AttentionShape& s, DType type, bool backward) {
  AttentionLane lane;
  const auto take = [&lane](Bytes elements) {
    const Bytes offset = lane.bytes;
    lane.bytes += arena_bytes(elements * 4);
    return offset;
  };
  const Bytes rows = backward ? attention_backward_block : attention_forward_block;
  const Bytes tile = rows * attention_score_stride(s.length);
  const Bytes head = Bytes{s.length} * s.head_width;
  const Bytes by_row = cpu::packed_size({s.length, s.head_width});
  const Bytes transposed = cpu::packed_size({s.head_width, s.length});
  lane.scores = take(tile);
  lane.keys = take(transposed);
  lane.values = take(backward ? transposed : by_row);
  if (type == DType::bf16) {
    lane.wide = take(head);
    lane.q = take(rows * s.head_width);
    lane.out = take(rows * s.head_width);
  }
  if (!backward) return lane;
  lane.gradients = take(tile);
  lane.keys_by_row = take(by_row);
  lane.dk = take(head);
  lane.dv = take(head);
  if (type == DType::bf16) {
    lane.dout = take(rows * s.head_width);
    lane.dq = take(rows * s.head_width);
  }
  return lane;
}

}  // namespace troupe::kernels
