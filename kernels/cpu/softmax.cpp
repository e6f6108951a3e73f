#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/softmax.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "kernels/cpu/softmax.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace troupe::kernels::cpu::HWY_NAMESPACE {

/// The largest element; NaN elements are passed over.
float row_maximum(const float* x, std::uint64_t n) {
  const Wide d;
  const std::uint64_t lanes = hn::Lanes(d);
  if (n < lanes) return *std::max_element(x, x + n);
  auto a = load(d, x), b = a;
  std::uint64_t i = lanes;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    a = hn::Max(load(d, x + i), a);
    b = hn::Max(load(d, x + i + lanes), b);
  }
  if (i + lanes <= n) a = hn::Max(load(d, x + i), a);
  b = hn::Max(load(d, x + n - lanes), b);
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(a, b)));
}

/// x = exp(scale (x - largest)), returns the sum.
float exponentials(float* x, std::uint64_t n, float scale, float largest) {
  return lane_sum(n, [&](auto d, std::uint64_t i, std::uint64_t count) {
    const auto centred = hn::Sub(load_part(d, x + i, count), hn::Set(d, largest));
    auto e = exp_of(d, hn::Mul(centred, hn::Set(d, scale)));
    if (count < hn::Lanes(d)) e = hn::IfThenElseZero(hn::FirstN(d, count), e);
    put_part(d, e, x + i, count);
    return e;
  });
}

/// The sum alone.
float exponential_sum(const float* x, std::uint64_t n, float largest) {
  return lane_sum(n, [&](auto d, std::uint64_t i, std::uint64_t count) {
    auto e = exp_of(d, hn::Sub(load_part(d, x + i, count), hn::Set(d, largest)));
    if (count < hn::Lanes(d)) e = hn::IfThenElseZero(hn::FirstN(d, count), e);
    return e;
  });
}

template <class T>
void scaled_copy(T* out, const float* x, std::uint64_t n, float factor) {
  each_vector(n, [&](auto d, std::uint64_t i, std::uint64_t count) {
    put_part(d, hn::Mul(load_part(d, x + i, count), hn::Set(d, factor)), out + i, count);
  });
}

float softmax_of(float* scores, std::uint64_t valid, std::uint64_t n, float scale) {
  const float largest = row_maximum(scores, valid);
  const float sum = exponentials(scores, valid, scale, largest);
  scaled_copy(scores, scores, valid, 1.0f / sum);
  std::fill(scores + valid, scores + n, 0.0f);
  return scale * largest + std::log(sum);
}

void gradient_of(const AttentionGradientRow& r) {
  each_vector(r.valid, [&](auto d, std::uint64_t i, std::uint64_t count) {
    const auto s = load_part(d, r.scores + i, count);
    const auto p = exp_of(d, hn::MulSub(s, hn::Set(d, r.scale), hn::Set(d, r.lse)));
    const auto centred = hn::Sub(load_part(d, r.gradients + i, count), hn::Set(d, r.delta));
    put_part(d, p, r.scores + i, count);
    put_part(d, hn::Mul(hn::Mul(p, hn::Set(d, r.scale)), centred), r.gradients + i, count);
  });
  std::fill(r.scores + r.valid, r.scores + r.n, 0.0f);
  std::fill(r.gradients + r.valid, r.gradients + r.n, 0.0f);
}

float dot_of(const float* a, const float* b, std::uint64_t n) {
  return lane_sum(n, [&](auto d, std::uint64_t i, std::uint64_t count) {
    return hn::Mul(load_part(d, a + i, count), load_part(d, b + i, count));
  });
}

double loss_of(const float* logits, std::uint64_t n, std::uint64_t target) {
  const float largest = row_maximum(logits, n);
  const auto sum = static_cast<double>(exponential_sum(logits, n, largest));
  return static_cast<double>(largest) + std::log(sum) - static_cast<double>(logits[target]);
}

double loss_gradient_of(
    float* logits, std::uint64_t n, std::uint64_t target, float scale, bool narrow) {
  const auto logit = static_cast<double>(logits[target]);
  const float largest = row_maximum(logits, n);
  const float sum = exponentials(logits, n, 1.0f, largest);
  const float factor = scale / sum;
  const float at_target = logits[target] * factor - scale;
  if (narrow) {
    // Element i lands on bytes that were read by then.
    auto* out = reinterpret_cast<Bf16*>(logits);
    scaled_copy(out, logits, n, factor);
    out[target] = to_bf16(at_target);
  } else {
    scaled_copy(logits, logits, n, factor);
    logits[target] = at_target;
  }
  return static_cast<double>(largest) + std::log(static_cast<double>(sum)) - logit;
}

template <class To, class From>
void convert_any(To* out, const From* x, std::uint64_t n) {
  each_vector(n, [&](auto d, std::uint64_t i, std::uint64_t count) {
    put_part(d, load_part(d, x + i, count), out + i, count);
  });
}
void narrow(Bf16* out, const float* x, std::uint64_t n) {
  convert_any(out, x, n);
}
void widen(float* out, const Bf16* x, std::uint64_t n) {
  convert_any(out, x, n);
}

}  // namespace troupe::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace troupe::kernels::cpu {

HWY_EXPORT(softmax_of);
HWY_EXPORT(gradient_of);
HWY_EXPORT(dot_of);
HWY_EXPORT(loss_of);
HWY_EXPORT(loss_gradient_of);
HWY_EXPORT(narrow);
HWY_EXPORT(widen);

float softmax_row(float* scores, std::uint64_t valid, std::uint64_t n, float scale) {
  return HWY_DYNAMIC_DISPATCH(softmax_of)(scores, valid, n, scale);
}
void attention_gradient_row(const AttentionGradientRow& row) {
  HWY_DYNAMIC_DISPATCH(gradient_of)(row);
}
float dot(const float* a, const float* b, std::uint64_t n) {
  return HWY_DYNAMIC_DISPATCH(dot_of)(a, b, n);
}
double row_loss(const float* logits, std::uint64_t n, std::uint64_t target) {
  return HWY_DYNAMIC_DISPATCH(loss_of)(logits, n, target);
}
double row_loss_gradient(
    float* logits, std::uint64_t n, std::uint64_t target, float scale, bool as_bf16) {
  return HWY_DYNAMIC_DISPATCH(loss_gradient_of)(logits, n, target, scale, as_bf16);
}
void convert(Bf16* out, const float* x, std::uint64_t n) {
  HWY_DYNAMIC_DISPATCH(narrow)(out, x, n);
}
void convert(float* out, const Bf16* x, std::uint64_t n) {
  HWY_DYNAMIC_DISPATCH(widen)(out, x, n);
}

}  // namespace troupe::kernels::cpu
#endif
