#include "devices/probe.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "devices/threads.h"
#include "devices/timing.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace troupe {
namespace {

constexpr std::uint64_t fma_rounds = 200000;
constexpr Bytes buffer_bytes = 32_MiB;

/// Flops done, and a value that depends on all of them.
struct FmaResult {
  double flops = 0;
  float value = 0;
};

FmaResult fma_scalar() {
  float a[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (std::uint64_t i = 0; i < fma_rounds; ++i) {
    for (float& x : a) x = x * 0.999f + 0.001f;
  }
  return {2.0 * 8 * static_cast<double>(fma_rounds), a[0] + a[1] + a[2] + a[3] + a[4]};
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) FmaResult fma_avx2() {
  __m256 a[12];
  for (int i = 0; i < 12; ++i) a[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 x = _mm256_set1_ps(0.999f);
  const __m256 y = _mm256_set1_ps(0.001f);
  for (std::uint64_t r = 0; r < fma_rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) a[i] = _mm256_fmadd_ps(a[i], x, y);
  }
  for (int i = 1; i < 12; ++i) a[0] = _mm256_add_ps(a[0], a[i]);
  return {2.0 * 8 * 12 * static_cast<double>(fma_rounds), _mm256_cvtss_f32(a[0])};
}

__attribute__((target("avx512f"))) FmaResult fma_avx512() {
  __m512 a[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 x = _mm512_set1_ps(0.999f);
  const __m512 y = _mm512_set1_ps(0.001f);
  for (std::uint64_t r = 0; r < fma_rounds; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) a[i] = _mm512_fmadd_ps(a[i], x, y);
  }
  for (int i = 1; i < 16; ++i) a[0] = _mm512_add_ps(a[0], a[i]);
  return {2.0 * 16 * 16 * static_cast<double>(fma_rounds), _mm512_cvtss_f32(a[0])};
}

__attribute__((target("avx2"))) std::uint64_t read_avx2(const std::byte* p, Bytes n) {
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (Bytes i = 0; i + 128 <= n; i += 128) {
    const auto* at = reinterpret_cast<const __m256i*>(p + i);
    a = _mm256_xor_si256(a, _mm256_loadu_si256(at));
    b = _mm256_xor_si256(b, _mm256_loadu_si256(at + 1));
    c = _mm256_xor_si256(c, _mm256_loadu_si256(at + 2));
    d = _mm256_xor_si256(d, _mm256_loadu_si256(at + 3));
  }
  const __m256i all = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
  return static_cast<std::uint64_t>(_mm256_extract_epi64(all, 0));
}

#endif

FmaResult fma_widest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return fma_avx512();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return fma_avx2();
#endif
  return fma_scalar();
}

std::uint64_t read_all(const std::byte* p, Bytes n) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return read_avx2(p, n);
#endif
  std::uint64_t sum = 0;
  for (Bytes i = 0; i + 8 <= n; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, p + i, 8);
    sum ^= word;
  }
  return sum;
}

}  // namespace

MachinePeak measure_peak(ComputePool& pool) {
  const std::uint64_t threads = pool.threads();
  MachinePeak peak;
  const auto clock = threads == 1 ? thread_seconds : monotonic_seconds;
  // Every thread's part is written where it cannot be optimised away.
  std::vector<double> seen(threads);
  // Four parts a thread, so that a thread that was late does not leave the others waiting.
  const std::uint64_t parts = threads * 4;
  const auto fma = [&] {
    pool.run(parts, [&](std::uint64_t, std::uint32_t thread) {
      const FmaResult result = fma_widest();
      seen[thread] += static_cast<double>(result.value);
    });
  };
  const double flops = fma_widest().flops * static_cast<double>(parts);
  peak.fma_f32 = flops / sorted_seconds(5, clock, fma).front();

  const Bytes all = threads * buffer_bytes;
  const std::unique_ptr<std::byte[]> from(new std::byte[all]), to(new std::byte[all]);
  std::memset(from.get(), 1, all);
  std::memset(to.get(), 2, all);
  const Bytes piece = 1_MiB;
  const auto read = [&] {
    pool.run(all / piece, [&](std::uint64_t i, std::uint32_t thread) {
      seen[thread] += static_cast<double>(read_all(from.get() + i * piece, piece) & 1);
    });
  };
  const auto copy = [&] {
    pool.run(all / piece, [&](std::uint64_t i, std::uint32_t) {
      std::memcpy(to.get() + i * piece, from.get() + i * piece, piece);
    });
  };
  peak.memory_read = static_cast<double>(all) / sorted_seconds(3, clock, read).front();
  peak.memory_copy = 2 * static_cast<double>(all) / sorted_seconds(3, clock, copy).front();
  volatile double keep = 0;
  for (const double s : seen) keep = keep + s;
  return peak;
}

}  // namespace troupe
