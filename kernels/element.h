/// Elements of tensors as f32, whatever they are stored as, and the checks and counts that ops
/// share.
#pragma once

#include <bit>
#include <cstdint>

#include "devices/device.h"
#include "devices/tensor.h"

namespace troupe::kernels {

/// A bfloat16 as it is stored: the upper half of an f32.
struct Bf16 {
  std::uint16_t bits = 0;
};

inline float to_float(float x) {
  return x;
}
inline float to_float(Bf16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

/// Rounds to nearest even; NaN stays NaN.
inline Bf16 to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (x != x) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

inline void store(float& to, float x) {
  to = x;
}
inline void store(Bf16& to, float x) {
  to = to_bf16(x);
}

/// Calls f with a value of the element type: f(float{}) or f(Bf16{}).
template <class F>
void with_float_type(DType type, F&& f) {
  EXPECTS(type == DType::f32 || type == DType::bf16);
  if (type == DType::f32) {
    f(float{});
  } else {
    f(Bf16{});
  }
}

template <class T>
T* row_of(const Tensor& t, std::uint64_t row) {
  return t.as<T>() + row * t.row_stride;
}

inline bool present(const Tensor& t) {
  return t.rank != 0;
}
inline bool is_float(const Tensor& t) {
  return t.dtype == DType::f32 || t.dtype == DType::bf16;
}
inline bool same_matrix(const Tensor& a, const Tensor& b) {
  return a.dtype == b.dtype && a.rows() == b.rows() && a.columns() == b.columns();
}
/// f32, dense, n elements in all.
inline bool is_vector(const Tensor& t, std::uint64_t n) {
  return t.dtype == DType::f32 && t.elements() == n && t.dense();
}

/// What one op does, for the meta device.
struct OpCost {
  double matmul_flops = 0;
  double other_flops = 0;
  Bytes bytes = 0;
};

/// On a meta stream counts the op and returns true: there is nothing to compute.
inline bool counted(Stream& stream, const OpCost& cost) {
  if (stream.body() != Stream::Body::meta) return false;
  OpCount& count = stream.count();
  count.matmul_flops += cost.matmul_flops;
  count.other_flops += cost.other_flops;
  count.bytes_moved += cost.bytes;
  ++count.launches;
  return true;
}

}  // namespace troupe::kernels
