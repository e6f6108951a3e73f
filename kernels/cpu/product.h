/// One matrix product on the calling thread.
///
/// For f32, and for bf16 where the processor's bf16 dot products are no faster than f32, the order
/// of every sum is part of the definition, so that results do not depend on how work is cut, on the
/// number of threads or on the width of the processor's vectors: products of one element are added
/// up by fused multiply-adds over k = 0, 1, ... within blocks of `product_depth` terms, each from
/// 0; block sums are added to the element one after the other.
#pragma once

#include <cstdint>

#include "kernels/cpu/shards.h"
#include "planner/dtype.h"

namespace troupe::kernels::cpu {

/// Terms of one partial sum. Panels of this depth fit the first-level cache.
inline constexpr std::uint64_t product_depth = 256;

/// c (m, n) = [c +] a b [+ bias]. Leading dimensions are row strides as stored.
struct Product {
  std::uint64_t m = 0, n = 0, k = 0;
  std::uint64_t lda = 0, ldb = 0, ldc = 0;
  bool a_transposed = false;  ///< stored (k, m)
  bool b_transposed = false;  ///< stored (n, k)
  bool accumulate = false;    ///< only with an f32 out; not with bias
  bool bias = false;
  DType in = DType::f32;
  DType out = DType::f32;
  /// f32 (n): sums of the columns of b are added, block of terms after block; null: none. Not by
  /// the library.
  float* column_sums = nullptr;
  /// Called for parts of c as they are done, while they are in a cache; null: not. It may change
  /// them.
  void (*rows_done)(const void* context, const MatrixPart& part) = nullptr;
  const void* context = nullptr;
  friend bool operator==(const Product&, const Product&) = default;
};

/// bias: f32 (n), null without. Packed panels belong to the calling thread, not to an arena: under
/// 1 MiB, and m x n f32 where out is bf16.
void multiply(const Product& p, const void* a, const void* b, void* c, const float* bias);

/// The two bodies of multiply: ours, for any type; and oneDNN's. m, n and k are not 0. Threads keep
/// what the library prepared for a shape, so that a shape met again costs nothing but its
/// arithmetic.
void multiply_packed(const Product& p, const void* a, const void* b, void* c, const float* bias);
void multiply_by_library(
    const Product& p, const void* a, const void* b, void* c, const float* bias);

/// An f32 b (k, n) as multiply packs it, for many products with it or with its first terms and
/// columns. Layouts differ between processors and mean nothing elsewhere.
struct PackedShape {
  std::uint64_t k = 0, n = 0;
};
constexpr std::uint64_t packed_stride(std::uint64_t n) {
  return (n + 63) / 64 * 64;
}
/// Floats of a packed b; it is 64-byte aligned.
constexpr std::uint64_t packed_size(PackedShape shape) {
  return shape.k * packed_stride(shape.n);
}
/// Packs the b of p: p.k, p.n, p.ldb and p.b_transposed count.
void pack(float* out, const Product& p, const float* b);
/// multiply with the first p.k terms and p.n columns of a packed b; f32, no bias. The result is
/// multiply's to the bit.
void multiply_with(const Product& p, const float* a, const float* b, PackedShape shape, float* c);

/// Whether bf16 products go to the library: it must have them, and the processor must be one where
/// its dot products beat f32 (AMD's, and Intel's with tiles; without tiles they run at half the
/// rate of f32). A property of the processor, never a measurement: it decides bits.
bool has_bf16_products();

}  // namespace troupe::kernels::cpu
