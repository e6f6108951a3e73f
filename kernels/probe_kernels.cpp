#include "kernels/probe_kernels.h"

#include <algorithm>
#include <vector>

#include "devices/arena.h"
#include "devices/compute_pool.h"
#include "devices/threads.h"
#include "devices/timing.h"
#include "kernels/ops.h"

namespace troupe::kernels {
namespace {

constexpr std::uint64_t elements = 8 << 20;  // 32 MiB of f32: beyond the caches
constexpr int measured_things = 9;           // of one call, with equal shares of the budget
constexpr int least_runs = 3;

/// Median seconds of one call, in about `budget` seconds.
template <class F>
Seconds median_seconds(Seconds budget, F&& f) {
  f();  // the first touches memory and packs
  std::vector<Seconds> runs;
  Seconds spent = 0;
  while (runs.size() < least_runs || spent < budget) {
    const Seconds begin = monotonic_seconds();
    f();
    runs.push_back(std::max(monotonic_seconds() - begin, 1e-9));
    spent += runs.back();
  }
  std::sort(runs.begin(), runs.end());
  return median(runs);
}

struct ProductShape {
  std::uint64_t m, k, n;
};
constexpr ProductShape large{512, 512, 768}, small{64, 64, 64}, thin{8, 768, 768};

FlopsPerSecond product_rate(
    Stream& stream, DType type, const ProductShape& shape, std::byte* data, Seconds budget) {
  const auto [m, k, n] = shape;
  Matmul args;
  args.a = make_tensor(data, type, {m, k});
  args.b = make_tensor(data + 4 * m * k, type, {k, n});
  args.out = make_tensor(data + 4 * (m * k + k * n), DType::f32, {m, n});
  fill(stream, args.a, 0.5f);
  fill(stream, args.b, 0.25f);
  const Seconds seconds = median_seconds(budget, [&] { matmul(stream, args); });
  return 2.0 * static_cast<double>(m * n * k) / seconds;
}

ProductRates product_rates(Stream& stream, DType type, std::byte* data, Seconds budget) {
  return {product_rate(stream, type, large, data, budget),
          product_rate(stream, type, small, data, budget),
          product_rate(stream, type, thin, data, budget)};
}

}  // namespace

KernelRates measure_kernels(Stream& stream, Seconds budget) {
  Arena arena("probe", 1_GiB, Arena::Backing::memory);
  auto from = arena.allocate(elements * 4, MemoryCategory::workspace);
  auto to = arena.allocate(elements * 4, MemoryCategory::workspace);
  EXPECTS(from.ok() && to.ok());
  const Tensor x = make_tensor(from->data(), DType::f32, {elements});
  const Tensor y = make_tensor(to->data(), DType::f32, {elements});
  const Tensor small_in = make_tensor(from->data(), DType::f32, {1 << 16});
  const Tensor small_out = make_tensor(to->data(), DType::f32, {1 << 16});
  const Seconds share = budget / measured_things;

  KernelRates measured;
  measured.f32 = product_rates(stream, DType::f32, from->data(), share);
  measured.bf16 = product_rates(stream, DType::bf16, from->data(), share);
  DeviceRates& rates = measured.rates;
  rates.matmul_f32 = measured.f32.large;
  rates.matmul_bf16 = measured.bf16.large;
  const Seconds copying = median_seconds(share, [&] { copy(stream, y, x); });
  rates.memory = 2.0 * 4 * elements / copying;
  const Seconds gelu = median_seconds(share, [&] { gelu_forward(stream, small_out, small_in); });
  rates.vector_f32 = 14.0 * (1 << 16) / gelu;
  rates.launch = median_seconds(share, [&] {
    stream.pool().run(stream.pool().threads(), [](std::uint64_t, std::uint32_t) {});
  });
  return measured;
}

DeviceRates measure_rates(Stream& stream) {
  return measure_kernels(stream).rates;
}

}  // namespace troupe::kernels
