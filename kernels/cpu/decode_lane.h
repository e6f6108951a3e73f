/// How one lane of attention_decode's workspace is laid out: offsets in bytes, all multiples of 64.
#pragma once

#include <algorithm>

#include "devices/arena.h"
#include "kernels/attention.h"
#include "kernels/cpu/attention_lane.h"

namespace troupe::kernels {

/// Query rows of one product: a block of new positions, or the group of heads of a single one.
inline std::uint64_t decode_rows(const AttentionShape& s) {
  const std::uint64_t group = s.heads / s.kv_heads;
  return std::max(group, std::min<std::uint64_t>(s.length, attention_block));
}

/// f32 elements from one row of scores to the next: whole cache lines.
constexpr std::uint64_t decode_score_stride(std::uint64_t keys) {
  return (keys + 15) / 16 * 16;
}

/// All f32. bf16 inputs are widened and results rounded once; f32 ones are read and written in
/// place.
struct DecodeLane {
  Bytes scores = 0;            ///< (rows, decode_score_stride(keys))
  Bytes reciprocals = 0;       ///< (rows): of the sums of the exponentials
  Bytes q = 0, out = 0;        ///< (rows, head width); bf16
  Bytes keys = 0, values = 0;  ///< (keys, head width); bf16
  Bytes bytes = 0;             ///< of the whole lane
};

inline DecodeLane decode_lane(const AttentionShape& s, std::uint64_t keys, DType type) {
  DecodeLane lane;
  const auto take = [&lane](std::uint64_t rows, std::uint64_t columns) {
    const Bytes offset = lane.bytes;
    lane.bytes += arena_bytes(rows * columns * 4);
    return offset;
  };
  const std::uint64_t rows = decode_rows(s);
  lane.scores = take(rows, decode_score_stride(keys));
  lane.reciprocals = take(rows, 1);
  if (type == DType::f32) return lane;
  lane.q = take(rows, s.head_width);
  lane.out = take(rows, s.head_width);
  lane.keys = take(keys, s.head_width);
  lane.values = take(keys, s.head_width);
  return lane;
}

}  // namespace troupe::kernels
