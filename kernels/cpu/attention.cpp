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

  /// A dense f32 copy in `scratch`.
  Part gathered(float* scratch) const {
    for (std::uint64_t i = 0; i < length; ++i) {
      if (f32()) {
        std::copy_n(at<float>(i), width, scratch + i * width);
      } else {
        convert(scratch + i * width, at<Bf16>(i), width);
      }
    }
    return {scratch, width};
  }
  /// Where f32 results go: in place, or to `scratch` for write_from.
  Part results(float* scratch) const {
    return f32() ? Part{at<float>(0), tensor.row_stride} : Part{scratch, width};
  }
  /// f32 values in place, or a copy.
  Part values(float* scratch) const { return f32() ? results(scratch) : gathered(scratch); }
  void write_from(const Part& part) const {
    for (std::uint64_t i = 0; i < length; ++i) {
      const float* from = part.data + i * part.stride;
      if (!f32()) {
        convert(at<Bf16>(i), from, width);
      } else if (from != at<float>(i)) {
        std::copy_n(from, width, at<float>(i));
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

float score_scale(const AttentionShape& s) {
  return 1.0f / std::sqrt(static_cast<float>(s.head_width));
}

void forward_head(const AttentionForward& args,
                  const Lane& lane,
                  std::uint64_t b,
                  std::uint64_t h) {
  const AttentionShape& s = args.shape;
  const std::uint64_t width = s.head_width;
  const std::uint64_t kv = h / (s.heads / s.kv_heads);
  const Part q = Head(args.q, b, h, s).gathered(lane.at(&AttentionLane::q));
  const Part k = Head(args.k, b, kv, s).gathered(lane.at(&AttentionLane::k));
  const Part v = Head(args.v, b, kv, s).gathered(lane.at(&AttentionLane::v));
  const Head out(args.out, b, h, s);
  const Part results = out.results(lane.at(&AttentionLane::out));
  const Part scores{lane.at(&AttentionLane::scores), s.length};
  float* lse = args.lse.as<float>() + (b * s.heads + h) * s.length;
  for (std::uint64_t first = 0; first < s.length; first += attention_block) {
    const std::uint64_t rows = std::min<std::uint64_t>(attention_block, s.length - first);
    const std::uint64_t keys = first + rows;
    product(Form::nt, rows, keys, width, q.rows_from(first), k, scores);
    for (std::uint64_t i = 0; i < rows; ++i) {
      lse[first + i] = softmax_row(scores.data + i * s.length, first + i + 1, keys, score_scale(s));
    }
    product(Form::nn, rows, width, keys, scores, v, results.rows_from(first));
  }
  out.write_from(results);
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
    product(Form::tn_accumulate, keys, width, rows, head.gradients, q, head.dk);
    product(Form::tn_accumulate, keys, width, rows, head.scores, dout, head.dv);
    product(Form::nn, rows, width, keys, head.gradients, head.k, head.dq.rows_from(first));
  }
}

/// One (sequence, kv head) with its group of query heads.
void backward_group(const AttentionBackward& args,
                    const Lane& lane,
                    std::uint64_t b,
                    std::uint64_t kv) {
  const AttentionShape& s = args.shape;
  const std::uint64_t width = s.head_width;
  const std::uint64_t group = s.heads / s.kv_heads;
  BackwardHead head{};
  head.k = Head(args.k, b, kv, s).gathered(lane.at(&AttentionLane::k));
  head.v = Head(args.v, b, kv, s).gathered(lane.at(&AttentionLane::v));
  head.scores = {lane.at(&AttentionLane::scores), s.length};
  head.gradients = {lane.at(&AttentionLane::gradients), s.length};
  head.dk = {lane.at(&AttentionLane::dk), width};
  head.dv = {lane.at(&AttentionLane::dv), width};
  std::fill_n(head.dk.data, s.length * width, 0.0f);
  std::fill_n(head.dv.data, s.length * width, 0.0f);
  for (std::uint64_t h = kv * group; h < (kv + 1) * group; ++h) {
    const Head dq(args.dq, b, h, s);
    head.q = Head(args.q, b, h, s).gathered(lane.at(&AttentionLane::q));
    head.out = Head(args.out, b, h, s).values(lane.at(&AttentionLane::out));
    head.dout = Head(args.dout, b, h, s).gathered(lane.at(&AttentionLane::dout));
    head.dq = dq.results(lane.at(&AttentionLane::dq));
    head.lse = args.lse.as<float>() + (b * s.heads + h) * s.length;
    backward_head(head, s);
    dq.write_from(head.dq);
  }
  Head(args.dk, b, kv, s).write_from(head.dk);
  Head(args.dv, b, kv, s).write_from(head.dv);
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
