// Attention of a few new positions over kept keys and values. Products and softmax are those of
// attention_forward, whose sums do not depend on how rows are cut: the rows come out the same.
#include <algorithm>
#include <cmath>

#include "devices/compute_pool.h"
#include "kernels/cpu/decode_lane.h"
#include "kernels/cpu/fast.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/shards.h"
#include "kernels/cpu/softmax.h"
#include "kernels/element.h"

namespace troupe::kernels::cpu {
namespace {

/// Rows of head-width elements, `stride` elements apart; all of a tensor's type.
struct Rows {
  std::byte* data = nullptr;
  std::uint64_t stride = 0;
  std::uint64_t count = 0;
};

Rows rows_at(const Tensor& t, std::uint64_t row, std::uint64_t column, std::uint64_t count) {
  return {t.data + (row * t.row_stride + column) * size_of(t.dtype), t.row_stride, count};
}

/// One product's worth: some query rows of one kv head.
struct Queries {
  Rows q, out;
  std::uint64_t kv_head = 0;
  std::uint64_t first_valid = 0;  ///< keys that row 0 sees
  std::uint64_t valid_step = 0;   ///< how many more each row after it sees
};

/// The rows as f32: in place, or widened into `copy`.
Rows as_f32(const Rows& rows, std::uint64_t width, DType type, std::byte* copy) {
  if (type == DType::f32) return rows;
  for (std::uint64_t i = 0; i < rows.count; ++i) {
    convert(reinterpret_cast<float*>(copy) + i * width,
            reinterpret_cast<const Bf16*>(rows.data) + i * rows.stride, width);
  }
  return {copy, width, rows.count};
}

void multiply_rows(bool transposed,
                   const Rows& a,
                   const Rows& b,
                   const Rows& c,
                   std::uint64_t n,
                   std::uint64_t k) {
  Product p;
  p.m = a.count, p.n = n, p.k = k;
  p.lda = a.stride, p.ldb = b.stride, p.ldc = c.stride;
  p.b_transposed = transposed;
  multiply(p, a.data, b.data, c.data, nullptr);
}

void decode(const AttentionDecode& args, const Queries& queries, std::byte* lane) {
  const AttentionShape& s = args.shape;
  const DType type = args.q.dtype;
  const std::uint64_t width = s.head_width;
  const std::uint64_t rows = queries.q.count;
  const DecodeLane at = decode_lane(s, std::uint64_t{args.first} + s.length, type);
  const std::uint64_t keys = queries.first_valid + (rows - 1) * queries.valid_step;
  const std::uint64_t column = queries.kv_head * width;
  const Rows q = as_f32(queries.q, width, type, lane + at.q);
  const Rows k = as_f32(rows_at(args.k, 0, column, keys), width, type, lane + at.keys);
  const Rows v = as_f32(rows_at(args.v, 0, column, keys), width, type, lane + at.values);
  const Rows scores{lane + at.scores, decode_score_stride(keys), rows};
  const Rows out = type == DType::f32 ? queries.out : Rows{lane + at.out, width, rows};
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
  multiply_rows(true, q, k, scores, keys, width);
  float* reciprocals = reinterpret_cast<float*>(lane + at.reciprocals);
  softmax_numerators({reinterpret_cast<float*>(scores.data), scores.stride, rows,
                      queries.first_valid, queries.valid_step, keys},
                     scale, reciprocals, nullptr);
  multiply_rows(false, scores, v, out, width, keys);
  const RowsOf<float> sums{reinterpret_cast<float*>(out.data), out.stride};
  const RowsOf<const float> read{sums.data, sums.stride};
  if (type == DType::f32) return scale_rows(sums, read, width, {reciprocals, rows});
  scale_rows(RowsOf<Bf16>{reinterpret_cast<Bf16*>(queries.out.data), queries.out.stride}, read,
             width, {reciprocals, rows});
}

}  // namespace

void attention_decode(Stream& stream, const AttentionDecode& args) {
  const AttentionShape& s = args.shape;
  const std::uint64_t group = s.heads / s.kv_heads;
  const Bytes lane_bytes = decode_lane(s, std::uint64_t{args.first} + s.length, args.q.dtype).bytes;
  // A single new position: the heads of a group lie side by side and share their keys.
  const bool single = s.length == 1;
  const std::uint64_t blocks = shard_count(s.length, attention_block);
  const std::uint64_t shards = single ? s.kv_heads : s.heads * blocks;
  stream.pool().run(shards, [&](std::uint64_t shard, std::uint32_t thread) {
    Queries queries;
    const std::uint64_t head = single ? shard * group : shard / blocks;
    const std::uint64_t row = single ? 0 : shard % blocks * attention_block;
    const std::uint64_t count =
        single ? group : std::min<std::uint64_t>(attention_block, s.length - row);
    queries.q = rows_at(args.q, row, head * s.head_width, count);
    queries.out = rows_at(args.out, row, head * s.head_width, count);
    if (single) queries.q.stride = queries.out.stride = s.head_width;
    queries.kv_head = head / group;
    queries.first_valid = args.first + row + 1;
    queries.valid_step = single ? 0 : 1;
    decode(args, queries, args.workspace.data + thread * lane_bytes);
  });
}

}  // namespace troupe::kernels::cpu
