/// How one lane of attention's workspace is laid out: offsets in bytes, all multiples of 64.
#pragma once

#include "devices/arena.h"
#include "devices/compute_pool.h"
#include "kernels/attention.h"

namespace troupe::kernels {

/// Query rows of one block.
inline constexpr std::uint64_t attention_block = 64;

struct AttentionLane {
  Bytes scores = 0;          ///< f32 (block, T): scores, then probabilities
  Bytes gradients = 0;       ///< f32 (block, T): their gradients; backward
  Bytes scores_bf16 = 0;     ///< bf16 (block, T); only when computing in bf16
  Bytes gradients_bf16 = 0;  ///< bf16 (block, T); backward in bf16
  Bytes dk = 0, dv = 0;      ///< f32 (T, head width); backward
  Bytes delta = 0;           ///< f32 (block); backward
  Bytes bytes = 0;           ///< of the whole lane
};

inline AttentionLane attention_lane(const AttentionShape& s, DType type, bool backward) {
  AttentionLane lane;
  Bytes at = 0;
  const auto take = [&at](Bytes bytes) {
    const Bytes offset = at;
    at += arena_bytes(bytes);
    return offset;
  };
  const Bytes tile = attention_block * s.length;
  const Bytes keys = Bytes{s.length} * s.head_width * 4;
  lane.scores = take(tile * 4);
  if (type == DType::bf16) lane.scores_bf16 = take(tile * 2);
  if (backward) {
    lane.gradients = take(tile * 4);
    if (type == DType::bf16) lane.gradients_bf16 = take(tile * 2);
    lane.dk = take(keys);
    lane.dv = take(keys);
    lane.delta = take(attention_block * 4);
  }
  lane.bytes = at;
  return lane;
}

}  // namespace troupe::kernels
