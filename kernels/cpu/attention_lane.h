/// How one lane of attention's workspace is laid out: offsets in bytes, all multiples of 64.
#pragma once

#include "devices/arena.h"
#include "devices/compute_pool.h"
#include "kernels/attention.h"

namespace troupe::kernels {

/// Query rows of one block.
inline constexpr std::uint64_t attention_block = 64;

/// Everything is f32 and inputs are dense, which products read fastest: heads are gathered once,
/// and widened where they are bf16; bf16 results are rounded once.
struct AttentionLane {
  Bytes scores = 0;           ///< (block, T): scores, then probabilities
  Bytes gradients = 0;        ///< (block, T): their gradients; backward
  Bytes dk = 0, dv = 0;       ///< (T, head width); backward
  Bytes q = 0, k = 0, v = 0;  ///< (T, head width)
  Bytes out = 0;              ///< (T, head width); for bf16
  Bytes dout = 0;             ///< (T, head width); backward
  Bytes dq = 0;               ///< (T, head width); backward of bf16
  Bytes bytes = 0;            ///< of the whole lane
};

inline AttentionLane attention_lane(const AttentionShape& s, DType type, bool backward) {
  AttentionLane lane;
  const auto take = [&lane](Bytes elements) {
    const Bytes offset = lane.bytes;
    lane.bytes += arena_bytes(elements * 4);
    return offset;
  };
  const Bytes tile = attention_block * s.length;
  const Bytes head = Bytes{s.length} * s.head_width;
  lane.scores = take(tile);
  lane.q = take(head);
  lane.k = take(head);
  lane.v = take(head);
  if (type == DType::bf16) lane.out = take(head);
  if (!backward) return lane;
  lane.gradients = take(tile);
  lane.dk = take(head);
  lane.dv = take(head);
  lane.dout = take(head);
  if (type == DType::bf16) lane.dq = take(head);
  return lane;
}

}  // namespace troupe::kernels
