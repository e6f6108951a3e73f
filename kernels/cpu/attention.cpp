#include <algorithm>
#include <cmath>

#include "devices/compute_pool.h"
#include "kernels/cpu/attention_lane.h"
#include "kernels/cpu/fast.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/softmax.h"
#include "kernels/element.h"

namespace troupe::kernels::cpu {
namespace {

/// A matrix somewhere in a tensor.
struct Part {
  void* data;
  std::uint64_t stride;
};

/// Rows from `row` on, columns of head `head`.
template <class T>
Part head_part(const Tensor& t, std::uint64_t row, std::uint64_t head, std::uint64_t width) {
  return {row_of<T>(t, row) + head * width, t.row_stride};
}

/// c (m, n) = [c +] a b, operands of type `in`.
struct Multiply {
  DType in, out;
  bool a_transposed = false, b_transposed = false, accumulate = false;
  void operator()(std::uint64_t m, std::uint64_t n, std::uint64_t k, Part a, Part b, Part c) const {
    Product p;
    p.m = m, p.n = n, p.k = k;
    p.lda = a.stride, p.ldb = b.stride, p.ldc = c.stride;
    p.a_transposed = a_transposed, p.b_transposed = b_transposed, p.accumulate = accumulate;
    p.in = in, p.out = out;
    multiply(p, a.data, b.data, c.data, nullptr);
  }
};

/// One lane's scratch as pointers.
template <class T>
struct Lane {
  float* scores;
  float* gradients;
  Bf16* narrow_scores;
  Bf16* narrow_gradients;
  float* dk;
  float* dv;
  std::uint64_t length;

  Lane(const Tensor& workspace, const AttentionLane& at, std::uint32_t thread, std::uint64_t t)
      : length(t) {
    std::byte* base = workspace.data + thread * at.bytes;
    constexpr bool narrow = !std::is_same_v<T, float>;
    scores = reinterpret_cast<float*>(base + at.scores);
    gradients = reinterpret_cast<float*>(base + at.gradients);
    narrow_scores = narrow ? reinterpret_cast<Bf16*>(base + at.scores_bf16) : nullptr;
    narrow_gradients = narrow ? reinterpret_cast<Bf16*>(base + at.gradients_bf16) : nullptr;
    dk = reinterpret_cast<float*>(base + at.dk);
    dv = reinterpret_cast<float*>(base + at.dv);
  }
  Part wide(float* p) const { return {p, length}; }
  /// As operands of the next product.
  Part operand(float* p, Bf16* narrow) const {
    return narrow == nullptr ? Part{p, length} : Part{narrow, length};
  }
  Bf16* narrow_row(Bf16* p, std::uint64_t i) const {
    return p == nullptr ? nullptr : p + i * length;
  }
};

template <class T>
void forward_head(const AttentionForward& args,
                  const Lane<T>& lane,
                  std::uint64_t b,
                  std::uint64_t h) {
  const AttentionShape& s = args.shape;
  const DType type = args.q.dtype;
  const std::uint64_t width = s.head_width;
  const std::uint64_t kv = h / (s.heads / s.kv_heads);
  const std::uint64_t first = b * s.length;
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
  float* lse = args.lse.as<float>() + (b * s.heads + h) * s.length;
  for (std::uint64_t q = 0; q < s.length; q += attention_block) {
    const std::uint64_t rows = std::min<std::uint64_t>(attention_block, s.length - q);
    const std::uint64_t keys = q + rows;
    Multiply{type, DType::f32, false, true}(
        rows, keys, width, head_part<T>(args.q, first + q, h, width),
        head_part<T>(args.k, first, kv, width), lane.wide(lane.scores));
    for (std::uint64_t i = 0; i < rows; ++i) {
      lse[q + i] = softmax_row(lane.scores + i * lane.length,
                               lane.narrow_row(lane.narrow_scores, i), q + i + 1, keys, scale);
    }
    Multiply{type, type}(rows, width, keys, lane.operand(lane.scores, lane.narrow_scores),
                         head_part<T>(args.v, first, kv, width),
                         head_part<T>(args.out, first + q, h, width));
  }
}

/// Probabilities and score gradients of query rows [q, q + rows) from raw scores and dout . v.
template <class T>
void gradient_block(const AttentionBackward& args,
                    const Lane<T>& lane,
                    std::uint64_t b,
                    std::uint64_t h,
                    std::uint64_t q,
                    std::uint64_t rows) {
  const AttentionShape& s = args.shape;
  const std::uint64_t width = s.head_width;
  for (std::uint64_t i = 0; i < rows; ++i) {
    const std::uint64_t row = b * s.length + q + i;
    AttentionGradientRow r{};
    r.scores = lane.scores + i * lane.length;
    r.gradients = lane.gradients + i * lane.length;
    r.narrow_scores = lane.narrow_row(lane.narrow_scores, i);
    r.narrow_gradients = lane.narrow_row(lane.narrow_gradients, i);
    r.valid = q + i + 1;
    r.n = q + rows;
    r.scale = 1.0f / std::sqrt(static_cast<float>(width));
    r.lse = args.lse.as<float>()[(b * s.heads + h) * s.length + q + i];
    r.delta =
        dot(row_of<T>(args.dout, row) + h * width, row_of<T>(args.out, row) + h * width, width);
    attention_gradient_row(r);
  }
}

template <class T>
void backward_head(const AttentionBackward& args,
                   const Lane<T>& lane,
                   std::uint64_t b,
                   std::uint64_t h) {
  const AttentionShape& s = args.shape;
  const DType type = args.q.dtype;
  const std::uint64_t width = s.head_width;
  const std::uint64_t kv = h / (s.heads / s.kv_heads);
  const std::uint64_t first = b * s.length;
  const Multiply scores{type, DType::f32, false, true};
  const Multiply add_transposed{type, DType::f32, true, false, true};
  const Part k = head_part<T>(args.k, first, kv, width);
  const Part v = head_part<T>(args.v, first, kv, width);
  for (std::uint64_t q = 0; q < s.length; q += attention_block) {
    const std::uint64_t rows = std::min<std::uint64_t>(attention_block, s.length - q);
    const std::uint64_t keys = q + rows;
    const Part query = head_part<T>(args.q, first + q, h, width);
    const Part dout = head_part<T>(args.dout, first + q, h, width);
    scores(rows, keys, width, query, k, lane.wide(lane.scores));
    scores(rows, keys, width, dout, v, lane.wide(lane.gradients));
    gradient_block(args, lane, b, h, q, rows);
    const Part p = lane.operand(lane.scores, lane.narrow_scores);
    const Part ds = lane.operand(lane.gradients, lane.narrow_gradients);
    Multiply{type, type}(rows, width, keys, ds, k, head_part<T>(args.dq, first + q, h, width));
    add_transposed(keys, width, rows, ds, query, Part{lane.dk, width});
    add_transposed(keys, width, rows, p, dout, Part{lane.dv, width});
  }
}

template <class T>
void backward_group(const AttentionBackward& args,
                    const Lane<T>& lane,
                    std::uint64_t b,
                    std::uint64_t kv) {
  const AttentionShape& s = args.shape;
  const std::uint64_t width = s.head_width;
  const std::uint64_t group = s.heads / s.kv_heads;
  std::fill_n(lane.dk, s.length * width, 0.0f);
  std::fill_n(lane.dv, s.length * width, 0.0f);
  for (std::uint64_t h = kv * group; h < (kv + 1) * group; ++h) backward_head(args, lane, b, h);
  for (std::uint64_t i = 0; i < s.length; ++i) {
    T* dk = row_of<T>(args.dk, b * s.length + i) + kv * width;
    T* dv = row_of<T>(args.dv, b * s.length + i) + kv * width;
    if constexpr (std::is_same_v<T, float>) {
      std::copy_n(lane.dk + i * width, width, dk);
      std::copy_n(lane.dv + i * width, width, dv);
    } else {
      convert(dk, lane.dk + i * width, width);
      convert(dv, lane.dv + i * width, width);
    }
  }
}

}  // namespace

void attention_forward(Stream& stream, const AttentionForward& args) {
  const AttentionShape& s = args.shape;
  const AttentionLane at = attention_lane(s, args.q.dtype, false);
  stream.pool().run(std::uint64_t{s.sequences} * s.heads,
                    [&](std::uint64_t shard, std::uint32_t thread) {
                      with_float_type(args.q.dtype, [&](auto type) {
                        const Lane<decltype(type)> lane(args.workspace, at, thread, s.length);
                        forward_head(args, lane, shard / s.heads, shard % s.heads);
                      });
                    });
}

void attention_backward(Stream& stream, const AttentionBackward& args) {
  const AttentionShape& s = args.shape;
  const AttentionLane at = attention_lane(s, args.q.dtype, true);
  stream.pool().run(std::uint64_t{s.sequences} * s.kv_heads,
                    [&](std::uint64_t shard, std::uint32_t thread) {
                      with_float_type(args.q.dtype, [&](auto type) {
                        const Lane<decltype(type)> lane(args.workspace, at, thread, s.length);
                        backward_group(args, lane, shard / s.kv_heads, shard % s.kv_heads);
                      });
                    });
}

}  // namespace troupe::kernels::cpu
