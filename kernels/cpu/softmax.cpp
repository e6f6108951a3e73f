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

/// 2^x within 2 ulp for x in [-126, 127], clamped outside; NaN stays NaN. Needs no second constant
/// for the reduction, and the factor log2 e goes into one that its callers apply anyway.
template <class D, class V>
HWY_INLINE V exp2_of([[maybe_unused]] D d, V x) {
  // The second operand of min and max comes through when it is NaN.
  x = hn::Max(hn::Set(d, -126.0f), hn::Min(hn::Set(d, 127.0f), x));
  // Adding it leaves the nearest integer + 127, an exponent, in the lowest bits.
  const auto shifter = hn::Set(d, 12582912.0f + 127.0f);
  const auto shifted = hn::Add(x, shifter);
  const auto r = hn::Sub(x, hn::Sub(shifted, shifter));
  // Interpolates 2^r on [-1/2, 1/2] at the zeros of a Chebyshev polynomial.
  auto y = hn::Set(d, 0.0001546144469856913f);
  y = hn::MulAdd(y, r, hn::Set(d, 0.0013400428177615838f));
  y = hn::MulAdd(y, r, hn::Set(d, 0.009618056678524637f));
  y = hn::MulAdd(y, r, hn::Set(d, 0.05550327226670302f));
  y = hn::MulAdd(y, r, hn::Set(d, 0.24022650922288757f));
  y = hn::MulAdd(y, r, hn::Set(d, 0.6931472067028326f));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
  const hn::RebindToSigned<D> bits;
  return hn::Mul(y, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(bits, shifted))));
}

constexpr float log2_e = 1.44269504088896341f;

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

void numerators_of(const ScoreRows& scores, float scale, float* reciprocals, float* lse) {
  const float factor = scale * log2_e;
  for (std::uint64_t row = 0; row < scores.rows; ++row) {
    float* x = scores.data + row * scores.stride;
    const std::uint64_t valid = scores.valid + row * scores.step;
    const float offset = row_maximum(x, valid) * factor;
    const float sum = lane_sum(valid, [&](auto d, std::uint64_t i, std::uint64_t count) {
      auto e = exp2_of(
          d, hn::MulSub(load_part(d, x + i, count), hn::Set(d, factor), hn::Set(d, offset)));
      if (count < hn::Lanes(d)) e = hn::IfThenElseZero(hn::FirstN(d, count), e);
      put_part(d, e, x + i, count);
      return e;
    });
    std::fill(x + valid, x + scores.n, 0.0f);
    reciprocals[row] = 1.0f / sum;
    if (lse != nullptr) {
      lse[row] = static_cast<float>(static_cast<double>(offset) * 0.69314718055994531 +
                                    static_cast<double>(std::log(sum)));
    }
  }
}

float dot_of(const float* a, const float* b, std::uint64_t n) {
  return lane_sum(n, [&](auto d, std::uint64_t i, std::uint64_t count) {
    return hn::Mul(load_part(d, a + i, count), load_part(d, b + i, count));
  });
}

void gradients_of(const AttentionGradientRows& r) {
  const float factor = r.scale * log2_e;
  for (std::uint64_t row = 0; row < r.scores.rows; ++row) {
    float* scores = r.scores.data + row * r.scores.stride;
    float* gradients = r.gradients + row * r.scores.stride;
    const std::uint64_t valid = r.scores.valid + row * r.scores.step;
    const float delta = dot_of(r.dout.row(row), r.out.row(row), r.width);
    const float offset = r.lse[row] * log2_e;
    each_vector(valid, [&](auto d, std::uint64_t i, std::uint64_t count) {
      const auto s = load_part(d, scores + i, count);
      const auto p = exp2_of(d, hn::MulSub(s, hn::Set(d, factor), hn::Set(d, offset)));
      const auto centred = hn::Sub(load_part(d, gradients + i, count), hn::Set(d, delta));
      put_part(d, p, scores + i, count);
      put_part(d, hn::Mul(hn::Mul(p, hn::Set(d, r.scale)), centred), gradients + i, count);
    });
    std::fill(scores + valid, scores + r.scores.n, 0.0f);
    std::fill(gradients + valid, gradients + r.scores.n, 0.0f);
  }
}

template <class T>
void scaled_rows(const RowsOf<T>& out,
                 const RowsOf<const float>& x,
                 std::uint64_t n,
                 const Factors& by) {
  for (std::uint64_t i = 0; i < by.rows; ++i) scaled_copy(out.row(i), x.row(i), n, by.data[i]);
}
void scale_to_f32(const RowsOf<float>& out,
                  const RowsOf<const float>& x,
                  std::uint64_t n,
                  const Factors& by) {
  scaled_rows(out, x, n, by);
}
void scale_to_bf16(const RowsOf<Bf16>& out,
                   const RowsOf<const float>& x,
                   std::uint64_t n,
                   const Factors& by) {
  scaled_rows(out, x, n, by);
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

HWY_EXPORT(numerators_of);
HWY_EXPORT(gradients_of);
HWY_EXPORT(scale_to_f32);
HWY_EXPORT(scale_to_bf16);
HWY_EXPORT(loss_of);
HWY_EXPORT(loss_gradient_of);
HWY_EXPORT(narrow);
HWY_EXPORT(widen);

void softmax_numerators(const ScoreRows& scores, float scale, float* reciprocals, float* lse) {
  HWY_DYNAMIC_DISPATCH(numerators_of)(scores, scale, reciprocals, lse);
}
void scale_rows(const RowsOf<float>& out,
                const RowsOf<const float>& x,
                std::uint64_t n,
                const Factors& by) {
  HWY_DYNAMIC_DISPATCH(scale_to_f32)(out, x, n, by);
}
void scale_rows(const RowsOf<Bf16>& out,
                const RowsOf<const float>& x,
                std::uint64_t n,
                const Factors& by) {
  HWY_DYNAMIC_DISPATCH(scale_to_bf16)(out, x, n, by);
}
void attention_gradient_rows(const AttentionGradientRows& rows) {
  HWY_DYNAMIC_DISPATCH(gradients_of)(rows);
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
