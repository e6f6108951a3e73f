/// Row functions of attention and of the head, vectorised; sums run over fixed lanes.
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace troupe::kernels::cpu {

/// scores[i] = softmax(scale * scores)[i] for i < valid, 0 for valid <= i < n. Returns the
/// log-sum-exp of scale * scores.
float softmax_row(float* scores, std::uint64_t valid, std::uint64_t n, float scale);

/// One row of attention's backward. In: raw scores, and gradients = dout . v. Out: scores become p
/// = exp(scale * score - lse), gradients p (gradient - delta) scale; both 0 from `valid` on.
struct AttentionGradientRow {
  float* scores;
  float* gradients;
  std::uint64_t valid, n;
  float scale, lse, delta;
};
void attention_gradient_row(const AttentionGradientRow& row);

/// Sum of a[i] * b[i].
float dot(const float* a, const float* b, std::uint64_t n);

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
