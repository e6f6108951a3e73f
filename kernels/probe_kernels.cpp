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

/// Takes the time of things by name, each in about the same share of a budget.
class Meter {
 public:
  Meter(Seconds share, std::vector<std::string>* unsteady) : share_(share), unsteady_(unsteady) {}

  /// Median seconds of one call.
  template <class F>
  Seconds median_seconds(const std::string& name, F&& f) {
    f();  // the first touches memory and packs
    std::vector<Seconds> runs;
    Seconds spent = 0;
    while (runs.size() < least_runs || spent < share_) {
      const Seconds begin = monotonic_seconds();
      f();
      runs.push_back(std::max(monotonic_seconds() - begin, 1e-9));
      spent += runs.back();
    }
    std::sort(runs.begin(), runs.end());
    if (unsteady_ != nullptr && is_unsteady(runs)) unsteady_->push_back(name);
    return median(runs);
  }

 private:
  Seconds share_;
  std::vector<std::string>* unsteady_;
};

struct ProductShape {
  const char* name;
  std::uint64_t m, k, n;
};
constexpr ProductShape large{"large", 512, 512, 768}, small{"small", 64, 64, 64},
    thin{"thin", 8, 768, 768};

FlopsPerSecond product_rate(
    Stream& stream, DType type, const ProductShape& shape, std::byte* data, Meter& meter) {
  const auto [name, m, k, n] = shape;
  Matmul args;
  args.a = make_tensor(data, type, {m, k});
  args.b = make_tensor(data + 4 * m * k, type, {k, n});
  args.out = make_tensor(data + 4 * (m * k + k * n), DType::f32, {m, n});
  fill(stream, args.a, 0.5f);
  fill(stream, args.b, 0.25f);
  const Seconds seconds =
      meter.median_seconds(std::string(name) + " products in " + std::string(to_string(type)),
                           [&] { matmul(stream, args); });
  return 2.0 * static_cast<double>(m * n * k) / seconds;
}

ProductRates product_rates(Stream& stream, DType type, std::byte* data, Meter& meter) {
  return {product_rate(stream, type, large, data, meter),
          product_rate(stream, type, small, data, meter),
          product_rate(stream, type, thin, data, meter)};
}

}  // namespace

KernelRates measure_kernels(Stream& stream, Seconds budget, std::vector<std::string>* unsteady) {
  Arena arena("probe", 1_GiB, Arena::Backing::memory);
  auto from = arena.allocate(elements * 4, MemoryCategory::workspace);
  auto to = arena.allocate(elements * 4, MemoryCategory::workspace);
  EXPECTS(from.ok() && to.ok());
  const Tensor x = make_tensor(from->data(), DType::f32, {elements});
  const Tensor y = make_tensor(to->data(), DType::f32, {elements});
  const Tensor small_in = make_tensor(from->data(), DType::f32, {1 << 16});
  const Tensor small_out = make_tensor(to->data(), DType::f32, {1 << 16});
  Meter meter(budget / measured_things, unsteady);

  KernelRates measured;
  measured.f32 = product_rates(stream, DType::f32, from->data(), meter);
  measured.bf16 = product_rates(stream, DType::bf16, from->data(), meter);
  DeviceRates& rates = measured.rates;
  rates.matmul_f32 = measured.f32.large;
  rates.matmul_bf16 = measured.bf16.large;
  const Seconds copying = meter.median_seconds("copies", [&] { copy(stream, y, x); });
  rates.memory = 2.0 * 4 * elements / copying;
  const Seconds gelu =
      meter.median_seconds("elementwise ops", [&] { gelu_forward(stream, small_out, small_in); });
  rates.vector_f32 = 14.0 * (1 << 16) / gelu;
  rates.launch = meter.median_seconds("op launches", [&] {
    stream.pool().run(stream.pool().threads(), [](std::uint64_t, std::uint32_t) {});
  });
  return measured;
}

DeviceRates measure_rates(Stream& stream) {
  return measure_kernels(stream).rates;
}

}  // namespace troupe::kernels
