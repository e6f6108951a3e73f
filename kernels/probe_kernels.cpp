#include "kernels/probe_kernels.h"

#include "devices/arena.h"
#include "devices/compute_pool.h"
#include "devices/threads.h"
#include "devices/timing.h"
#include "kernels/ops.h"

namespace troupe::kernels {
namespace {

/// Median seconds of one call.
template <class F>
Seconds median_seconds(int runs, F&& f) {
  return median(sorted_seconds(runs, monotonic_seconds, f));
}

FlopsPerSecond matmul_rate(Stream& stream, DType type, std::byte* data) {
  constexpr std::uint64_t m = 512, n = 768, k = 512;
  Matmul args;
  args.a = make_tensor(data, type, {m, k});
  args.b = make_tensor(data + 4 * m * k, type, {k, n});
  args.out = make_tensor(data + 4 * (m * k + k * n), DType::f32, {m, n});
  fill(stream, args.a, 0.5f);
  fill(stream, args.b, 0.25f);
  const Seconds seconds = median_seconds(9, [&] { matmul(stream, args); });
  return 2.0 * m * n * k / seconds;
}

}  // namespace

DeviceRates measure_rates(Stream& stream) {
  constexpr std::uint64_t elements = 8 << 20;  // 32 MiB each: beyond the caches
  Arena arena("probe", 1_GiB, Arena::Backing::memory);
  auto from = arena.allocate(elements * 4, MemoryCategory::workspace);
  auto to = arena.allocate(elements * 4, MemoryCategory::workspace);
  EXPECTS(from.ok() && to.ok());
  const Tensor x = make_tensor(from->data(), DType::f32, {elements});
  const Tensor y = make_tensor(to->data(), DType::f32, {elements});
  const Tensor small = make_tensor(from->data(), DType::f32, {1 << 16});
  const Tensor small_out = make_tensor(to->data(), DType::f32, {1 << 16});

  DeviceRates rates;
  rates.matmul_f32 = matmul_rate(stream, DType::f32, from->data());
  rates.matmul_bf16 = matmul_rate(stream, DType::bf16, from->data());
  const Seconds copying = median_seconds(5, [&] { copy(stream, y, x); });
  rates.memory = 2.0 * 4 * elements / copying;
  const Seconds gelu = median_seconds(9, [&] { gelu_forward(stream, small_out, small); });
  rates.vector_f32 = 14.0 * (1 << 16) / gelu;
  const Seconds empty = median_seconds(
      21, [&] { stream.pool().run(stream.pool().threads(), [](std::uint64_t, std::uint32_t) {}); });
  rates.launch = empty;
  return rates;
}

}  // namespace troupe::kernels
