#include <algorithm>
#include <array>
#include <cmath>

#include "devices/compute_pool.h"
#include "kernels/cpu/attention_lane.h"
#include "kernels/cpu/fast.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/softmax.h"
#include "kernels/element.h"

namespace troupe::kernels::cpu {
namespace {

/// Rows of f32 in a tensor or in a lane.
using Part = RowsOf<float>;

/// A packed b.
struct Packed {
  float* data;
  PackedShape shape;
};

/// c (m, n) = a b, where b is the first k terms and n columns of what is packed.
void product(std::uint64_t m, std::uint64_t n, std::uint64_t k, Part a, const Packed& b, Part c) {
  Product p;
  p.m = m, p.n = n, p.k = k;
  p.lda = a.stride, p.ldc = c.stride;
  multiply_with(p, a.data, b.data, b.shape, c.data);
}

/// c (m, n) += a^T b.
void add_product(std::uint64_t m, std::uint64_t n, std::uint64_t k, Part a, Part b, Part c) {
  Product p;
  p.m = m, p.n = n, p.k = k;
  p.lda = a.stride, p.ldb = b.stride, p.ldc = c.stride;
  p.a_transposed = p.accumulate = true;
  multiply(p, a.data, b.data, c.data, nullptr);
}

/// Columns of one head over the rows of one sequence.
struct Head {
  Tensor tensor;
  std::uint64_t row, column, length, width;

  Head(const Tensor& t, std::uint64_t sequence, std::uint64_t head, const AttentionShape& s)
      : tensor(t),
        row(sequence * s.length),
        column(head * s.head_width),
        length(s.length),
        width(s.head_width) {}
  template <class T>
  T* at(std::uint64_t i) const {
    return row_of<T>(tensor, row + i) + column;
  }
  bool f32() const { return tensor.dtype == DType::f32; }

  /// Where f32 results for the rows from `first` on go: in place, or to `scratch` for write.
  Part results(std::uint64_t first, float* scratch) const {
    return f32() ? Part{at<float>(first), tensor.row_stride} : Part{scratch, width};
  }
  /// `count` rows from `first` on as f32: in place, or widened into `scratch`.
  Part values(std::uint64_t first, std::uint64_t count, float* scratch) const {
    if (!f32()) {
      for (std::uint64_t i = 0; i < count; ++i) {
        convert(scratch + i * width, at<Bf16>(first + i), width);
      }
    }
    return results(first, scratch);
  }
  /// Stores results, where they are not there yet.
  void write(std::uint64_t first, std::uint64_t count, const Part& part) const {
    for (std::uint64_t i = 0; i < count; ++i) {
      if (!f32()) {
        convert(at<Bf16>(first + i), part.row(i), width);
      } else if (part.row(i) != at<float>(first + i)) {
        std::copy_n(part.row(i), width, at<float>(first + i));
      }
    }
  }
};

/// Where the parts of one lane are.
struct Lane {
  std::byte* base;
  AttentionLane offsets;
  float* at(Bytes AttentionLane::*part) const {
    return reinterpret_cast<float*>(base + offsets.*part);
  }
};

/// The head, which lies at `x`, as the b of products; `transposed`: each row becomes a column.
Packed packed(float* out, const Head& head, const Part& x, bool transposed) {
  Product p;
  p.k = transposed ? head.width : head.length;
  p.n = transposed ? head.length : head.width;
  p.ldb = x.stride;
  p.b_transposed = transposed;
  pack(out, p, x.data);
  return {out, {p.k, p.n}};
}

float score_scale(const AttentionShape& s) {
  return 1.0f / std::sqrt(static_cast<float>(s.head_width));
}

/// Calls f(first, rows) for the blocks of query rows.
template <class F>
void each_block(std::uint64_t length, std::uint64_t block, F&& f) {
  for (std::uint64_t first = 0; first < length; first += block) {
    f(first, std::min(block, length - first));
  }
}

void forward_head(const AttentionForward& args,
                  const Lane& lane,
                  std::uint64_t b,
                  std::uint64_t h) {
  const AttentionShape& s = args.shape;
  const std::uint64_t width = s.head_width;
  const std::uint64_t kv = h / (s.heads / s.kv_heads);
  const Head q(args.q, b, h, s), k(args.k, b, kv, s), v(args.v, b, kv, s), out(args.out, b, h, s);
  float* wide = lane.at(&AttentionLane::wide);
  const Packed keys = packed(lane.at(&AttentionLane::keys), k, k.values(0, s.length, wide), true);
  const Packed values =
      packed(lane.at(&AttentionLane::values), v, v.values(0, s.length, wide), false);
  const Part scores{lane.at(&AttentionLane::scores), attention_score_stride(s.length)};
  float* lse = args.lse.as<float>() + (b * s.heads + h) * s.length;
  each_block(s.length, attention_forward_block, [&](std::uint64_t first, std::uint64_t rows) {
    const std::uint64_t seen = first + rows;
    const Part query = q.values(first, rows, lane.at(&AttentionLane::q));
    const Part result = out.results(first, lane.at(&AttentionLane::out));
    std::array<float, attention_forward_block> reciprocals;
    product(rows, seen, width, query, keys, scores);
    softmax_numerators({scores.data, scores.stride, rows, first + 1, 1, seen}, score_scale(s),
                       reciprocals.data(), lse + first);
    product(rows, width, seen, scores, values, result);
    const RowsOf<const float> sums{result.data, result.stride};
    const Factors factors{reciprocals.data(), rows};
    if (out.f32()) {
      scale_rows(result, sums, width, factors);
    } else {
      scale_rows(RowsOf<Bf16>{out.at<Bf16>(first), args.out.row_stride}, sums, width, factors);
    }
  });
}

/// What the query heads of one kv head share in backward.
struct BackwardGroup {
  Packed keys, values, keys_by_row;
  Part dk, dv;
};

void backward_head(const AttentionBackward& args,
                   const Lane& lane,
                   const BackwardGroup& group,
                   std::uint64_t b,
                   std::uint64_t h) {
  const AttentionShape& s = args.shape;
  const std::uint64_t width = s.head_width;
  const Head heads_q(args.q, b, h, s), heads_out(args.out, b, h, s);
  const Head heads_dout(args.dout, b, h, s), heads_dq(args.dq, b, h, s);
  const Part scores{lane.at(&AttentionLane::scores), attention_score_stride(s.length)};
  const Part gradients{lane.at(&AttentionLane::gradients), scores.stride};
  const float* lse = args.lse.as<float>() + (b * s.heads + h) * s.length;
  each_block(s.length, attention_backward_block, [&](std::uint64_t first, std::uint64_t rows) {
    const std::uint64_t seen = first + rows;
    const Part q = heads_q.values(first, rows, lane.at(&AttentionLane::q));
    const Part out = heads_out.values(first, rows, lane.at(&AttentionLane::out));
    const Part dout = heads_dout.values(first, rows, lane.at(&AttentionLane::dout));
    const Part dq = heads_dq.results(first, lane.at(&AttentionLane::dq));
    product(rows, seen, width, q, group.keys, scores);
    product(rows, seen, width, dout, group.values, gradients);
    attention_gradient_rows({{scores.data, scores.stride, rows, first + 1, 1, seen},
                             gradients.data,
                             lse + first,
                             {dout.data, dout.stride},
                             {out.data, out.stride},
                             width,
                             score_scale(s)});
    add_product(seen, width, rows, gradients, q, group.dk);
    add_product(seen, width, rows, scores, dout, group.dv);
    product(rows, width, seen, gradients, group.keys_by_row, dq);
    heads_dq.write(first, rows, dq);
  });
}

/// One (sequence, kv head) with its group of query heads.
void backward_group(const AttentionBackward& args,
                    const Lane& lane,
                    std::uint64_t b,
                    std::uint64_t kv) {
  const AttentionShape& s = args.shape;
  const std::uint64_t size = s.heads / s.kv_heads;
  const Head k(args.k, b, kv, s), v(args.v, b, kv, s);
  float* wide = lane.at(&AttentionLane::wide);
  BackwardGroup group{};
  const Part key_rows = k.values(0, s.length, wide);
  group.keys = packed(lane.at(&AttentionLane::keys), k, key_rows, true);
  group.keys_by_row = packed(lane.at(&AttentionLane::keys_by_row), k, key_rows, false);
  group.values = packed(lane.at(&AttentionLane::values), v, v.values(0, s.length, wide), true);
  group.dk = {lane.at(&AttentionLane::dk), s.head_width};
  group.dv = {lane.at(&AttentionLane::dv), s.head_width};
  std::fill_n(group.dk.data, s.length * s.head_width, 0.0f);
  std::fill_n(group.dv.data, s.length * s.head_width, 0.0f);
  for (std::uint64_t h = kv * size; h < (kv + 1) * size; ++h) {
    backward_head(args, lane, group, b, h);
  }
  Head(args.dk, b, kv, s).write(0, s.length, group.dk);
  Head(args.dv, b, kv, s).write(0, s.length, group.dv);
}

}  // namespace

void attention_forward(Stream& stream, const AttentionForward& args) {
  const AttentionShape& s = args.shape;
  const AttentionLane at = attention_lane(s, args.q.dtype, false);
  stream.pool().run(std::uint64_t{s.sequences} * s.heads,
                    [&](std::uint64_t shard, std::uint32_t thread) {
                      const Lane lane{args.workspace.data + thread * at.bytes, at};
                      forward_head(args, lane, shard / s.heads, shard % s.heads);
                    });
}

void attention_backward(Stream& stream, const AttentionBackward& args) {
  const AttentionShape& s = args.shape;
  const AttentionLane at = attention_lane(s, args.q.dtype, true);
  stream.pool().run(std::uint64_t{s.sequences} * s.kv_heads,
                    [&](std::uint64_t shard, std::uint32_t thread) {
                      const Lane lane{args.workspace.data + thread * at.bytes, at};
                      backward_group(args, lane, shard / s.kv_heads, shard % s.kv_heads);
                    });
}

}  // namespace troupe::kernels::cpu
