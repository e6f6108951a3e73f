// Sums of squares and AdamW.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/update.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <array>

#include "devices/compute_pool.h"
#include "kernels/cpu/fast.h"
#include "kernels/cpu/shards.h"
#include "kernels/cpu/vector-inl.h"
#include "kernels/element.h"

HWY_BEFORE_NAMESPACE();
namespace troupe::kernels::cpu::HWY_NAMESPACE {

/// Four accumulators of four doubles; with fewer lanes, the tail loop does all of it in the same
/// order.
double squares_of(const float* x, std::uint64_t n) {
  HWY_ALIGN double sums[16] = {};
  std::uint64_t i = 0;
  const hn::CappedTag<double, 4> d;
  const hn::Rebind<float, decltype(d)> half;
  if (hn::Lanes(d) == 4) {
    auto a = hn::Zero(d), b = a, c = a, e = a;
    for (; i + 16 <= n; i += 16) {
      const auto v0 = hn::PromoteTo(d, hn::LoadU(half, x + i));
      const auto v1 = hn::PromoteTo(d, hn::LoadU(half, x + i + 4));
      const auto v2 = hn::PromoteTo(d, hn::LoadU(half, x + i + 8));
      const auto v3 = hn::PromoteTo(d, hn::LoadU(half, x + i + 12));
      // A square of two f32 is exact in double, so fused or not is the same.
      a = hn::MulAdd(v0, v0, a);
      b = hn::MulAdd(v1, v1, b);
      c = hn::MulAdd(v2, v2, c);
      e = hn::MulAdd(v3, v3, e);
    }
    hn::Store(a, d, sums);
    hn::Store(b, d, sums + 4);
    hn::Store(c, d, sums + 8);
    hn::Store(e, d, sums + 12);
  }
  for (; i < n; ++i) sums[i % 16] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (std::size_t width = 8; width > 0; width /= 2) {
    for (std::size_t j = 0; j < width; ++j) sums[j] += sums[j + width];
  }
  return sums[0];
}

void adamw_run(const AdamW& args, const AdamWFactors& f, std::uint64_t begin, std::uint64_t end) {
  float* w = args.weight.as<float>() + begin;
  float* m = args.first_moment.as<float>() + begin;
  float* v = args.second_moment.as<float>() + begin;
  const float* gradient = args.gradient.as<float>() + begin;
  Bf16* narrow = present(args.weight_bf16) ? args.weight_bf16.as<Bf16>() + begin : nullptr;
  each_vector(end - begin, [&](auto d, std::uint64_t i, std::uint64_t count) {
    const auto g = hn::Mul(load_part(d, gradient + i, count), hn::Set(d, f.gradient_scale));
    const auto m1 = hn::MulAdd(hn::Set(d, f.beta1), load_part(d, m + i, count),
                               hn::Mul(hn::Set(d, f.one_minus_beta1), g));
    const auto v1 = hn::MulAdd(hn::Set(d, f.beta2), load_part(d, v + i, count),
                               hn::Mul(hn::Set(d, f.one_minus_beta2), hn::Mul(g, g)));
    const auto root = hn::MulAdd(hn::Sqrt(v1), hn::Set(d, f.inverse_root2), hn::Set(d, f.epsilon));
    const auto decayed = hn::Mul(load_part(d, w + i, count), hn::Set(d, f.keep));
    const auto w1 = hn::Sub(decayed, hn::Div(hn::Mul(hn::Set(d, f.step_size), m1), root));
    put_part(d, m1, m + i, count);
    put_part(d, v1, v + i, count);
    put_part(d, w1, w + i, count);
    if (narrow != nullptr) put_part(d, w1, narrow + i, count);
  });
}

}  // namespace troupe::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace troupe::kernels::cpu {
namespace {

HWY_EXPORT(squares_of);
HWY_EXPORT(adamw_run);

}  // namespace

double sum_of_squares(Stream& stream, const Tensor& x) {
  // At most 64 shards, so that their sums stand on the stack.
  constexpr std::uint64_t most = 64;
  const std::uint64_t n = x.elements();
  const std::uint64_t size = shard_count(shard_count(n, most), 4096) * 4096;
  const std::uint64_t shards = n == 0 ? 0 : shard_count(n, size);
  std::array<double, most> sums{};
  stream.pool().run(shards, [&](std::uint64_t shard, std::uint32_t) {
    const std::uint64_t begin = shard * size;
    sums[shard] =
        HWY_DYNAMIC_DISPATCH(squares_of)(x.as<float>() + begin, std::min(size, n - begin));
  });
  double sum = 0;
  for (std::uint64_t i = 0; i < shards; ++i) sum += sums[i];
  return sum;
}

void adamw(Stream& stream, const AdamW& args) {
  constexpr std::uint64_t size = 1 << 14;
  const AdamWFactors f = adamw_factors(args);
  const std::uint64_t n = args.weight.elements();
  stream.pool().run(shard_count(n, size), [&](std::uint64_t shard, std::uint32_t) {
    HWY_DYNAMIC_DISPATCH(adamw_run)(args, f, shard * size, std::min(n, (shard + 1) * size));
  });
}

}  // namespace troupe::kernels::cpu
#endif
