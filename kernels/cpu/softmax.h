/// Row functions of attention and of the head, vectorised; sums run over fixed lanes.
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace troupe::kernels::cpu {

template <class T>
struct RowsOf {
  T* data;
  std::uint64_t stride;
  T* row(std::uint64_t i) const { return data + i * stride; }
};

/// Rows of scores of queries that follow each other: row i has `valid` + i * `step` keys to see,
/// and 0 comes out from there to `n`.
struct ScoreRows {
  float* data;
  std::uint64_t stride, rows;
  std::uint64_t valid, step, n;
};

/// Row i becomes exp(scale (score - its largest)), whose sum is 1 / reciprocals[i]: dividing what
/// is made of the row costs less than dividing the row. lse[i], unless null, is the log-sum-exp of
/// scale * scores.
void softmax_numerators(const ScoreRows& scores, float scale, float* reciprocals, float* lse);

/// One factor per row.
struct Factors {
  const float* data;
  std::uint64_t rows;
};
/// Row i of out = factor i times row i of x, both of n elements; out may be x.
void scale_rows(const RowsOf<float>& out,
                const RowsOf<const float>& x,
                std::uint64_t n,
                const Factors& by);
void scale_rows(const RowsOf<Bf16>& out,
                const RowsOf<const float>& x,
                std::uint64_t n,
                const Factors& by);

/// Attention's backward between its products. In: raw scores, and gradients = dout . v at the same
/// places. Out: scores become p = exp(scale * score - lse), gradients p (gradient - delta) scale,
/// where delta = dout . out; lse, dout and out are those of the rows.
struct AttentionGradientRows {
  ScoreRows scores;
  float* gradients;  ///< (rows, n), scores' stride
  const float* lse;
  RowsOf<const float> dout, out;
  std::uint64_t width;  ///< elements of a row of dout and out
  float scale;
};
void attention_gradient_rows(const AttentionGradientRows& rows);

/// -log softmax(logits)[target].
double row_loss(const float* logits, std::uint64_t n, std::uint64_t target);
/// The same, and logits become (softmax - onehot(target)) * scale: in place, or as bf16 from the
/// row's start on.
double row_loss_gradient(
    float* logits, std::uint64_t n, std::uint64_t target, float scale, bool narrow);

/// out = x rounded, or widened; n elements.
void convert(Bf16* out, const float* x, std::uint64_t n);
void convert(float* out, const Bf16* x, std::uint64_t n);

}  // namespace troupe::kernels::cpu
