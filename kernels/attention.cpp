#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/attention_lane.h"
#include "kernels/cpu/decode_lane.h"
#include "kernels/cpu/fast.h"
#include "kernels/element.h"

namespace troupe::kernels {
namespace {

/// One query row against the keys up to it: score_j = scale * q . k_j. Returns the log-sum-exp.
template <class T>
double row_scores(const T* q,
                  const Tensor& k,
                  std::uint64_t first_row,
                  std::uint64_t keys,
                  std::uint64_t column,
                  const AttentionShape& s,
                  std::vector<double>& scores) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(s.head_width));
  double largest = -INFINITY;
  for (std::uint64_t j = 0; j < keys; ++j) {
    const T* key = row_of<T>(k, first_row + j) + column;
    double dot = 0;
    for (std::uint32_t c = 0; c < s.head_width; ++c) {
      dot += static_cast<double>(to_float(q[c])) * static_cast<double>(to_float(key[c]));
    }
    scores[j] = dot * scale;
    largest = std::max(largest, scores[j]);
  }
  double sum = 0;
  for (std::uint64_t j = 0; j < keys; ++j) sum += std::exp(scores[j] - largest);
  return largest + std::log(sum);
}

/// out = softmax(scores) v over `keys` rows from `first_row` on. Returns the log-sum-exp.
template <class T>
double attend(T* out,
              const T* q,
              const Tensor& k,
              const Tensor& v,
              std::uint64_t first_row,
              std::uint64_t keys,
              std::uint64_t column,
              const AttentionShape& s,
              std::vector<double>& scores) {
  const double lse = row_scores(q, k, first_row, keys, column, s, scores);
  for (std::uint32_t c = 0; c < s.head_width; ++c) {
    double sum = 0;
    for (std::uint64_t j = 0; j < keys; ++j) {
      sum += std::exp(scores[j] - lse) *
             static_cast<double>(to_float(row_of<T>(v, first_row + j)[column + c]));
    }
    store(out[c], static_cast<float>(sum));
  }
  return lse;
}

template <class T>
void naive_forward(const AttentionForward& args) {
  const AttentionShape& s = args.shape;
  const std::uint32_t group = s.heads / s.kv_heads;
  std::vector<double> scores(s.length);
  for (std::uint64_t b = 0; b < s.sequences; ++b) {
    for (std::uint64_t h = 0; h < s.heads; ++h) {
      for (std::uint64_t i = 0; i < s.length; ++i) {
        const std::uint64_t row = b * s.length + i;
        const std::uint64_t column = h * s.head_width;
        const double lse =
            attend(row_of<T>(args.out, row) + column, row_of<T>(args.q, row) + column, args.k,
                   args.v, b * s.length, i + 1, h / group * s.head_width, s, scores);
        args.lse.as<float>()[(b * s.heads + h) * s.length + i] = static_cast<float>(lse);
      }
    }
  }
}

template <class T>
void naive_decode(const AttentionDecode& args) {
  const AttentionShape& s = args.shape;
  const std::uint32_t group = s.heads / s.kv_heads;
  std::vector<double> scores(std::uint64_t{args.first} + s.length);
  for (std::uint64_t h = 0; h < s.heads; ++h) {
    for (std::uint64_t i = 0; i < s.length; ++i) {
      const std::uint64_t column = h * s.head_width;
      attend(row_of<T>(args.out, i) + column, row_of<T>(args.q, i) + column, args.k, args.v, 0,
             args.first + i + 1, h / group * s.head_width, s, scores);
    }
  }
}

/// The heads of one (sequence, kv head): dk and dv are summed over their group.
template <class T>
void naive_backward_group(const AttentionBackward& args, std::uint64_t b, std::uint64_t kv_head) {
  const AttentionShape& s = args.shape;
  const std::uint32_t group = s.heads / s.kv_heads;
  const std::uint32_t width = s.head_width;
  const std::uint64_t kv = kv_head * width;
  const double scale = 1.0 / std::sqrt(static_cast<double>(width));
  std::vector<double> scores(s.length), dq(width);
  std::vector<double> dk(std::uint64_t{s.length} * width), dv(dk.size());
  for (std::uint64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    for (std::uint64_t i = 0; i < s.length; ++i) {
      const std::uint64_t row = b * s.length + i;
      const T* q = row_of<T>(args.q, row) + h * width;
      const T* out = row_of<T>(args.out, row) + h * width;
      const T* dout = row_of<T>(args.dout, row) + h * width;
      row_scores(q, args.k, b * s.length, i + 1, kv, s, scores);
      const auto lse = static_cast<double>(args.lse.as<float>()[(b * s.heads + h) * s.length + i]);
      double delta = 0;
      for (std::uint32_t c = 0; c < width; ++c) {
        delta += static_cast<double>(to_float(out[c])) * static_cast<double>(to_float(dout[c]));
      }
      std::fill(dq.begin(), dq.end(), 0.0);
      for (std::uint64_t j = 0; j <= i; ++j) {
        const T* k = row_of<T>(args.k, b * s.length + j) + kv;
        const T* v = row_of<T>(args.v, b * s.length + j) + kv;
        const double p = std::exp(scores[j] - lse);
        double dp = 0;
        for (std::uint32_t c = 0; c < width; ++c) {
          dp += static_cast<double>(to_float(dout[c])) * static_cast<double>(to_float(v[c]));
        }
        const double ds = p * (dp - delta) * scale;
        for (std::uint32_t c = 0; c < width; ++c) {
          dq[c] += ds * static_cast<double>(to_float(k[c]));
          dk[j * width + c] += ds * static_cast<double>(to_float(q[c]));
          dv[j * width + c] += p * static_cast<double>(to_float(dout[c]));
        }
      }
      T* dq_row = row_of<T>(args.dq, row) + h * width;
      for (std::uint32_t c = 0; c < width; ++c) store(dq_row[c], static_cast<float>(dq[c]));
    }
  }
  for (std::uint64_t j = 0; j < s.length; ++j) {
    for (std::uint32_t c = 0; c < width; ++c) {
      store(row_of<T>(args.dk, b * s.length + j)[kv + c], static_cast<float>(dk[j * width + c]));
      store(row_of<T>(args.dv, b * s.length + j)[kv + c], static_cast<float>(dv[j * width + c]));
    }
  }
}

/// Flops of one product over the causal triangle of all heads.
double triangle_flops(const AttentionShape& s) {
  const double t = s.length;
  return 2.0 * s.sequences * s.heads * (t * (t + 1) / 2) * s.head_width;
}

void check_shape(
    const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lse) {
  EXPECTS(s.kv_heads > 0 && s.heads % s.kv_heads == 0 && is_float(q));
  const std::uint64_t rows = std::uint64_t{s.sequences} * s.length;
  EXPECTS(q.rows() == rows && q.columns() == std::uint64_t{s.heads} * s.head_width);
  EXPECTS(k.rows() == rows && k.columns() == std::uint64_t{s.kv_heads} * s.head_width);
  EXPECTS(same_matrix(k, v) && k.dtype == q.dtype);
  EXPECTS(lse.dense() && lse.dtype == DType::f32);
  EXPECTS(lse.elements() == std::uint64_t{s.sequences} * s.heads * s.length);
}

}  // namespace

void attention_forward(Stream& stream, const AttentionForward& args) {
  const AttentionShape& s = args.shape;
  check_shape(s, args.q, args.k, args.v, args.lse);
  EXPECTS(same_matrix(args.out, args.q));
  EXPECTS(args.workspace.bytes() >= attention_workspace(s, args.q.dtype, false));
  const double triangle = triangle_flops(s);
  const OpCost cost{2 * triangle, triangle / (2.0 * s.head_width) * 6,
                    args.q.bytes() * 2 + args.k.bytes() * 2 + args.lse.bytes()};
  if (counted(stream, cost)) return;
  if (stream.body() == Stream::Body::fast) return cpu::attention_forward(stream, args);
  with_float_type(args.q.dtype, [&](auto type) { naive_forward<decltype(type)>(args); });
}

void attention_backward(Stream& stream, const AttentionBackward& args) {
  const AttentionShape& s = args.shape;
  check_shape(s, args.q, args.k, args.v, args.lse);
  EXPECTS(same_matrix(args.out, args.q) && same_matrix(args.dout, args.q));
  EXPECTS(same_matrix(args.dq, args.q) && same_matrix(args.dk, args.k));
  EXPECTS(same_matrix(args.dv, args.k));
  EXPECTS(args.workspace.bytes() >= attention_workspace(s, args.q.dtype, true));
  const double triangle = triangle_flops(s);
  const OpCost cost{5 * triangle, triangle / (2.0 * s.head_width) * 8,
                    args.q.bytes() * 4 + args.k.bytes() * 4 + args.lse.bytes()};
  if (counted(stream, cost)) return;
  if (stream.body() == Stream::Body::fast) return cpu::attention_backward(stream, args);
  with_float_type(args.q.dtype, [&](auto type) {
    for (std::uint64_t b = 0; b < s.sequences; ++b) {
      for (std::uint64_t h = 0; h < s.kv_heads; ++h) {
        naive_backward_group<decltype(type)>(args, b, h);
      }
    }
  });
}

void attention_decode(Stream& stream, const AttentionDecode& args) {
  const AttentionShape& s = args.shape;
  const std::uint64_t keys = std::uint64_t{args.first} + s.length;
  EXPECTS(s.kv_heads > 0 && s.heads % s.kv_heads == 0 && is_float(args.q) && s.sequences == 1);
  EXPECTS(args.q.rows() == s.length && same_matrix(args.out, args.q));
  EXPECTS(args.q.columns() == std::uint64_t{s.heads} * s.head_width);
  EXPECTS(args.k.rows() >= keys && same_matrix(args.k, args.v) && args.k.dtype == args.q.dtype);
  EXPECTS(args.k.columns() == std::uint64_t{s.kv_heads} * s.head_width);
  EXPECTS(args.workspace.bytes() >= attention_decode_workspace(s, keys, args.q.dtype));
  const double pairs = s.heads * (static_cast<double>(s.length) * args.first +
                                  static_cast<double>(s.length) * (s.length + 1.0) / 2);
  const Bytes read = 2 * keys * args.k.columns() * size_of(args.k.dtype);
  const OpCost cost{4 * pairs * s.head_width, 6 * pairs, args.q.bytes() * 2 + read};
  if (counted(stream, cost)) return;
  if (stream.body() == Stream::Body::fast) return cpu::attention_decode(stream, args);
  with_float_type(args.q.dtype, [&](auto type) { naive_decode<decltype(type)>(args); });
}

Bytes attention_decode_workspace(const AttentionShape& shape, std::uint64_t keys, DType type) {
  return max_pool_threads * decode_lane(shape, keys, type).bytes;
}

Bytes attention_workspace(const AttentionShape& shape, DType type, bool backward) {
  return max_pool_threads * attention_lane(shape, type, backward).bytes;
}

}  // namespace troupe::kernels
