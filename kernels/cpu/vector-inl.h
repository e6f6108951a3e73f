// Loads, stores, exp and fixed-lane sums over Highway vectors. Included once per target, inside
// foreach_target files.
#if defined(TROUPE_VECTOR_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TROUPE_VECTOR_INL
#undef TROUPE_VECTOR_INL
#else
#define TROUPE_VECTOR_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "kernels/element.h"

HWY_BEFORE_NAMESPACE();
namespace troupe::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Wide = hn::ScalableTag<float>;
/// The lanes of every sum, on every target.
inline constexpr std::uint64_t sum_lanes = 64;

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* p) {
  return hn::LoadU(d, p);
}

template <class D>
HWY_INLINE hn::Vec<D> load([[maybe_unused]] D d, const Bf16* p) {
  const hn::Rebind<std::uint16_t, D> half;
  const hn::RebindToUnsigned<D> word;
  const auto bits = hn::LoadU(half, reinterpret_cast<const std::uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(word, bits)));
}

template <class D>
HWY_INLINE void put(D d, hn::Vec<D> v, float* p) {
  hn::StoreU(v, d, p);
}

template <class D>
HWY_INLINE void put([[maybe_unused]] D d, hn::Vec<D> v, Bf16* p) {
  const hn::Rebind<std::uint16_t, D> half;
  const hn::RebindToUnsigned<D> word;
  const hn::RebindToSigned<D> sign;
  const auto bits = hn::BitCast(word, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(word, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(word, 0x7fffu))));
  const auto nan = hn::Or(hn::ShiftRight<16>(bits), hn::Set(word, 0x40u));
  const auto is_nan = hn::RebindMask(word, hn::IsNaN(v));
  const auto chosen = hn::IfThenElse(is_nan, nan, rounded);
  hn::StoreU(hn::DemoteTo(half, hn::BitCast(sign, chosen)), half,
             reinterpret_cast<std::uint16_t*>(p));
}

/// e^x within 2 ulp for x in [-87, 88], clamped outside; NaN stays NaN.
template <class D, class V>
HWY_INLINE V exp_of([[maybe_unused]] D d, V x) {
  // The second operand of min and max comes through when it is NaN.
  x = hn::Max(hn::Set(d, -87.33f), hn::Min(hn::Set(d, 88.37f), x));
  const hn::RebindToSigned<D> di;
  const auto n = hn::NearestInt(hn::Mul(x, hn::Set(d, 1.44269504088896341f)));
  const auto nf = hn::ConvertTo(d, n);
  // ln 2 in two parts, so that the first product is exact.
  auto r = hn::NegMulAdd(nf, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(nf, hn::Set(d, -2.12194440e-4f), r);
  auto y = hn::Set(d, 1.0f / 5040);
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 720));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 120));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 24));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 6));
  y = hn::MulAdd(y, r, hn::Set(d, 0.5f));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
  const auto scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
  return hn::Mul(y, scale);
}

template <class D, class V>
HWY_INLINE V sigmoid_of(D d, V x) {
  const auto one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, exp_of(d, hn::Neg(x))));
}

/// Loads and stores of the first `count` lanes, so that tails run the same instructions. Lanes
/// beyond are loaded as 0.
template <class D>
HWY_INLINE hn::Vec<D> load_part(D d, const float* p, std::uint64_t count) {
  return count >= hn::Lanes(d) ? load(d, p) : hn::MaskedLoad(hn::FirstN(d, count), d, p);
}

template <class D>
HWY_INLINE hn::Vec<D> load_part(D d, const Bf16* p, std::uint64_t count) {
  if (count >= hn::Lanes(d)) return load(d, p);
  HWY_ALIGN Bf16 padded[HWY_MAX_BYTES / 4] = {};
  for (std::uint64_t i = 0; i < count; ++i) padded[i] = p[i];
  return load(d, padded);
}

template <class D>
HWY_INLINE void put_part(D d, hn::Vec<D> v, float* p, std::uint64_t count) {
  if (count >= hn::Lanes(d)) return put(d, v, p);
  hn::BlendedStore(v, hn::FirstN(d, count), d, p);
}

template <class D>
HWY_INLINE void put_part(D d, hn::Vec<D> v, Bf16* p, std::uint64_t count) {
  if (count >= hn::Lanes(d)) return put(d, v, p);
  HWY_ALIGN Bf16 padded[HWY_MAX_BYTES / 4];
  put(d, v, padded);
  for (std::uint64_t i = 0; i < count; ++i) p[i] = padded[i];
}

/// Calls f(d, i, count) for i = 0, lanes, 2 lanes, ...; count < lanes only in the last call.
template <class F>
HWY_INLINE void each_vector(std::uint64_t n, F&& f) {
  const Wide d;
  const std::uint64_t lanes = hn::Lanes(d);
  std::uint64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(d, i, lanes);
  if (i < n) f(d, i, n - i);
}

/// Sum of f over the elements [0, n): f(d, i, count) gives a vector, 0 in lanes >= count. Element i
/// goes to accumulator i mod 64 and the accumulators are added up by halves, so that every target
/// and every tail adds in the same order.
template <class F>
HWY_INLINE float lane_sum(std::uint64_t n, F&& f) {
  const Wide d;
  constexpr std::uint64_t lanes = hn::MaxLanes(Wide());
  constexpr std::uint64_t vectors = sum_lanes / lanes;
  hn::Vec<Wide> sums[vectors];
  for (auto& sum : sums) sum = hn::Zero(d);
  std::uint64_t i = 0;
  for (; i + sum_lanes <= n; i += sum_lanes) {
#pragma GCC unroll 8
    for (std::uint64_t j = 0; j < vectors; ++j) {
      sums[j] = hn::Add(sums[j], f(d, i + j * lanes, lanes));
    }
  }
  for (std::uint64_t j = 0; i < n; i += lanes, ++j) {
    sums[j] = hn::Add(sums[j], f(d, i, std::min(lanes, n - i)));
  }
#pragma GCC unroll 8
  for (std::uint64_t width = vectors / 2; width > 0; width /= 2) {
#pragma GCC unroll 8
    for (std::uint64_t j = 0; j < width; ++j) sums[j] = hn::Add(sums[j], sums[j + width]);
  }
  HWY_ALIGN float parts[lanes];
  hn::Store(sums[0], d, parts);
  for (std::uint64_t width = lanes / 2; width > 0; width /= 2) {
    for (std::uint64_t j = 0; j < width; ++j) parts[j] += parts[j + width];
  }
  return parts[0];
}

}  // namespace troupe::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
