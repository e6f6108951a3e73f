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
inline constexpr std::size_t sum_lanes = 8;

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
  const auto is_nan = hn::RebindMask(word, hn::Ne(v, v));
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

/// Loads and stores of the first `count` lanes, so that tails run the same instructions.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_part(D d, const T* p, std::size_t count) {
  if (count >= hn::Lanes(d)) return load(d, p);
  HWY_ALIGN T padded[HWY_MAX_BYTES / 4] = {};
  for (std::size_t i = 0; i < count; ++i) padded[i] = p[i];
  return load(d, padded);
}

template <class D, class T>
HWY_INLINE void put_part(D d, hn::Vec<D> v, T* p, std::size_t count) {
  if (count >= hn::Lanes(d)) return put(d, v, p);
  HWY_ALIGN T padded[HWY_MAX_BYTES / 4];
  put(d, v, padded);
  for (std::size_t i = 0; i < count; ++i) p[i] = padded[i];
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

/// Sums over fixed lanes: four accumulators of eight, added up as one written-out tree, so that
/// every target and every tail gives the same bits.
class LaneSum {
 public:
  using D = hn::CappedTag<float, sum_lanes>;

  /// Sum of f over the elements [0, n): f(d, i, count) gives a vector, 0 in lanes >= count.
  template <class F>
  static HWY_INLINE float over(std::uint64_t n, F&& f) {
    const D d;
    if (hn::Lanes(d) != sum_lanes) return over_narrow(n, f);
    auto a = hn::Zero(d), b = a, c = a, e = a;
    std::uint64_t i = 0;
    for (; i + 4 * sum_lanes <= n; i += 4 * sum_lanes) {
      a = hn::Add(a, f(d, i, sum_lanes));
      b = hn::Add(b, f(d, i + sum_lanes, sum_lanes));
      c = hn::Add(c, f(d, i + 2 * sum_lanes, sum_lanes));
      e = hn::Add(e, f(d, i + 3 * sum_lanes, sum_lanes));
    }
    const auto tail = [&](std::uint64_t at) {
      return at < n ? f(d, at, std::min<std::uint64_t>(sum_lanes, n - at)) : hn::Zero(d);
    };
    if (i < n) {
      a = hn::Add(a, tail(i));
      b = hn::Add(b, tail(i + sum_lanes));
      c = hn::Add(c, tail(i + 2 * sum_lanes));
      e = hn::Add(e, tail(i + 3 * sum_lanes));
    }
    HWY_ALIGN float sums[sum_lanes];
    hn::Store(hn::Add(hn::Add(a, c), hn::Add(b, e)), d, sums);
    return tree(sums);
  }

 private:
  static HWY_INLINE float tree(const float* b) {
    return ((b[0] + b[4]) + (b[2] + b[6])) + ((b[1] + b[5]) + (b[3] + b[7]));
  }
  /// The same additions where vectors have four lanes or fewer.
  template <class F>
  static HWY_INLINE float over_narrow(std::uint64_t n, F&& f) {
    const D d;
    const std::uint64_t lanes = hn::Lanes(d);
    HWY_ALIGN float sums[4 * sum_lanes] = {};
    HWY_ALIGN float values[sum_lanes];
    for (std::uint64_t i = 0; i < n; i += lanes) {
      hn::Store(f(d, i, std::min<std::uint64_t>(lanes, n - i)), d, values);
      for (std::uint64_t j = 0; j < lanes; ++j) sums[(i + j) % (4 * sum_lanes)] += values[j];
    }
    HWY_ALIGN float b[sum_lanes];
    for (std::size_t j = 0; j < sum_lanes; ++j) {
      b[j] = (sums[j] + sums[j + 2 * sum_lanes]) + (sums[j + sum_lanes] + sums[j + 3 * sum_lanes]);
    }
    return tree(b);
  }
};

}  // namespace troupe::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
