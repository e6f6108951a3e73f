/// One matrix product on the calling thread. Threads keep what the library prepared for a shape, so
/// that a shape met again costs nothing but its arithmetic. What the library needs beside its
/// operands (packed panels, a few MiB a thread) is its own and not an arena's.
#pragma once

#include <cstdint>

#include "planner/dtype.h"

namespace troupe::kernels::cpu {

/// c (m, n) = [c +] a b [+ bias]. Leading dimensions are row strides as stored.
struct Product {
  std::uint64_t m = 0, n = 0, k = 0;
  std::uint64_t lda = 0, ldb = 0, ldc = 0;
  bool a_transposed = false;  ///< stored (k, m)
  bool b_transposed = false;  ///< stored (n, k)
  bool accumulate = false;
  bool bias = false;
  DType in = DType::f32;
  DType out = DType::f32;
  friend bool operator==(const Product&, const Product&) = default;
};

/// bias: f32 (n), null without.
void multiply(const Product& p, const void* a, const void* b, void* c, const float* bias);

/// The same through f32 copies of panels: for bf16 where that is the only or the faster way.
void multiply_converted(const Product& p, const void* a, const void* b, void* c, const float* bias);

/// Whether bf16 products run as such: the library must have them, and the processor must be one
/// where its dot products beat f32 (AMD's, and Intel's with tiles; without tiles they run at half
/// the rate of f32). A property of the processor, never a measurement: it decides bits.
bool has_bf16_products();

}  // namespace troupe::kernels::cpu
