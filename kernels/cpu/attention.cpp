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

/// A f32 matrix in a tensor or in a lane.
struct Part {
  float* data;
  std::uint64_t stride;
  Part rows_from(std::uint64_t row) const { return {data + row * stride, stride}; }
};

enum class Form { nn, nt, tn_accumulate };

/// c (m, n) = a b, a b^T, or c + a^T b.
void product(Form form, std::uint64_t m, std::uint64_t n, std::uint64_t k, Part a, Part b, Part c) {
  Product p;
  p.m = m, p.n = n, p.k = k;
  p.lda = a.stride, p.ldb = b.stride, p.ldc = c.stride;
  p.a_transposed = p.accumulate = form == Form::tn_accumulate;
  p.b_transposed = form == Form::nt;
  multiply(p, a.data, b.data, c.data, nullptr);
}

/// Columns of one head over the rows of one sequence: where they are in f32, and where they belong.
class Head {
 public:
  /// f32 is used in place; bf16 by way of `scratch` (T, width).
  Head(const Tensor& t,
       std::byte* scratch,
       std::uint64_t sequence,
       std::uint64_t head,
       const AttentionShape& s)
      : tensor_(t),
        first_(sequence * s.length),
        column_(head * s.head_width),
        length_(s.length),
        width_(s.head_width) {
    if (t.dtype == DType::f32) {
      part_ = {row_of<float>(t, first_) + column_, t.row_stride};
    } else {
      part_ = {reinterpret_cast<float*>(scratch), width_};
    }
  }
  const Part& part() const { return part_; }
  /// Widens an input.
  const Head& loaded() const {
    if (tensor_.dtype == DType::f32) return *this;
    for (std::uint64_t i = 0; i < length_; ++i) {
      convert(part_.data + i * width_, row_of<Bf16>(tensor_, first_ + i) + column_, width_);
    }
    return *this;
  }
  /// Rounds a result to where it belongs.
  void write_back() const {
    if (tensor_.dtype == DType::f32) return;
    for (std::uint64_t i = 0; i < length_; ++i) {
      convert(row_of<Bf16>(tensor_, first_ + i) + column_, part_.data + i * width_, width_);
    }
  }

 private:
  Tensor tensor_;
  std::uint64_t first_, column_, length_, width_;
  Part part_{};
};

float score_scale(const AttentionShape& s) {
  return 1.0f / std::sqrt(static_cast<float>(s.head_width));
}

void forward_head(const AttentionForward& args,
                  std::byte* lane,
                  const AttentionLane& at,
                  std::uint64_t b,
                  std::uint64_t h) {
  const AttentionShape& s = args.shape;
  const std::uint64_t width = s.head_width;
  const std::uint64_t kv = h / (s.heads / s.kv_heads);
  const Part q = Head(args.q, lane + at.q, b, h, s).loaded().part();
  const Part k = Head(args.k, lane + at.k, b, kv, s).loaded().part();
  const Part v = Head(args.v, lane + at.v, b, kv, s).loaded().part();
  const Head out(args.out, lane + at.out, b, h, s);
  const Part scores{reinterpret_cast<float*>(lane + at.scores), s.length};
  float* lse = args.lse.as<float>() + (b * s.heads + h) * s.length;
  for (std::uint64_t first = 0; first < s.length; first += attention_block) {
    const std::uint64_t rows = std::min<std::uint64_t>(attention_block, s.length - first);
    const std::uint64_t keys = first + rows;
    product(Form::nt, rows, keys, width, q.rows_from(first), k, scores);
    for (std::uint64_t i = 0; i < rows; ++i) {
      lse[first + i] = softmax_row(scores.data + i * s.length, first + i + 1, keys, score_scale(s));
    }
    product(Form::nn, rows, width, keys, scores, v, out.part().rows_from(first));
  }
  out.write_back();
}

/// What one query head of backward reads.
struct BackwardHead {
  Part q, k, v, out, dout, dq;
  Part scores, gradients, dk, dv;
  const float* lse;
};

void backward_head(const BackwardHead& head, const AttentionShape& s) {
  const std::uint64_t width = s.head_width;
  for (std::uint64_t first = 0; first < s.length; first += attention_block) {
    const std::uint64_t rows = std::min<std::uint64_t>(attention_block, s.length - first);
    const std::uint64_t keys = first + rows;
    const Part q = head.q.rows_from(first);
    const Part dout = head.dout.rows_from(first);
    const Part out = head.out.rows_from(first);
    product(Form::nt, rows, keys, width, q, head.k, head.scores);
    product(Form::nt, rows, keys, width, dout, head.v, head.gradients);
    for (std::uint64_t i = 0; i < rows; ++i) {
      AttentionGradientRow row{};
      row.scores = head.scores.rows_from(i).data;
      row.gradients = head.gradients.rows_from(i).data;
      row.valid = first + i + 1;
      row.n = keys;
      row.scale = score_scale(s);
      row.lse = head.lse[first + i];
      row.delta = dot(dout.rows_from(i).data, out.rows_from(i).data, width);
      attention_gradient_row(row);
    }
    // dq of a bf16 head stands where its q stood: these rows of q are read before they are written.
    product(Form::tn_accumulate, keys, width, rows, head.gradients, q, head.dk);
    product(Form::tn_accumulate, keys, width, rows, head.scores, dout, head.dv);
    product(Form::nn, rows, width, keys, head.gradients, head.k, head.dq.rows_from(first));
  }
}

/// One (sequence, kv head) with its group of query heads.
void backward_group(const AttentionBackward& args,
                    std::byte* lane,
                    const AttentionLane& at,
                    std::uint64_t b,
                    std::uint64_t kv) {
  const AttentionShape& s = args.shape;
  const std::uint64_t width = s.head_width;
  const std::uint64_t group = s.heads / s.kv_heads;
  const auto area = [lane](Bytes offset) { return reinterpret_cast<float*>(lane + offset); };
  BackwardHead head{};
  head.k = Head(args.k, lane + at.k, b, kv, s).loaded().part();
  head.v = Head(args.v, lane + at.v, b, kv, s).loaded().part();
  head.scores = {area(at.scores), s.length};
  head.gradients = {area(at.gradients), s.length};
  head.dk = {area(at.dk), width};
  head.dv = {area(at.dv), width};
  std::fill_n(head.dk.data, s.length * width, 0.0f);
  std::fill_n(head.dv.data, s.length * width, 0.0f);
  for (std::uint64_t h = kv * group; h < (kv + 1) * group; ++h) {
    const Head dq(args.dq, lane + at.q, b, h, s);
    head.q = Head(args.q, lane + at.q, b, h, s).loaded().part();
    head.out = Head(args.out, lane + at.out, b, h, s).loaded().part();
    head.dout = Head(args.dout, lane + at.dout, b, h, s).loaded().part();
    head.dq = dq.part();
    head.lse = args.lse.as<float>() + (b * s.heads + h) * s.length;
    backward_head(head, s);
    dq.write_back();
  }
  const auto write = [&](const Tensor& to, const Part& from) {
    for (std::uint64_t i = 0; i < s.length; ++i) {
      const std::uint64_t row = b * s.length + i;
      if (to.dtype == DType::f32) {
        std::copy_n(from.rows_from(i).data, width, row_of<float>(to, row) + kv * width);
      } else {
        convert(row_of<Bf16>(to, row) + kv * width, from.rows_from(i).data, width);
      }
    }
  };
  write(args.dk, head.dk);
  write(args.dv, head.dv);
}

}  // namespace

void attention_forward(Stream& stream, const AttentionForward& args) {
  const AttentionShape& s = args.shape;
  const AttentionLane at = attention_lane(s, args.q.dtype, false);
  stream.pool().run(std::uint64_t{s.sequences} * s.heads,
                    [&](std::uint64_t shard, std::uint32_t thread) {
                      std::byte* lane = args.workspace.data + thread * at.bytes;
                      forward_head(args, lane, at, shard / s.heads, shard % s.heads);
                    });
}

void attention_backward(Stream& stream, const AttentionBackward& args) {
  const AttentionShape& s = args.shape;
  const AttentionLane at = attention_lane(s, args.q.dtype, true);
  stream.pool().run(std::uint64_t{s.sequences} * s.kv_heads,
                    [&](std::uint64_t shard, std::uint32_t thread) {
                      std::byte* lane = args.workspace.data + thread * at.bytes;
                      backward_group(args, lane, at, shard / s.kv_heads, shard % s.kv_heads);
                    });
}

}  // namespace troupe::kernels::cpu
