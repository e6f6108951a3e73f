// GELU and SwiGLU.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "devices/compute_pool.h"
#include "kernels/cpu/fast.h"
#include "kernels/cpu/shards.h"
#include "kernels/cpu/vector-inl.h"
#include "kernels/element.h"

HWY_BEFORE_NAMESPACE();
namespace troupe::kernels::cpu::HWY_NAMESPACE {

// gelu(x) = x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3): the tanh form without tanh.
constexpr float gelu_linear = 2 * 0.79788456080286535588f;
constexpr float gelu_cubic = gelu_linear * 0.044715f;

template <class T>
void gelu_rows(T* out, const T* x, std::uint64_t n) {
  each_vector(n, [&](auto d, std::uint64_t i, std::uint64_t count) {
    const auto v = load_part(d, x + i, count);
    const auto u2 =
        hn::Mul(v, hn::MulAdd(hn::Mul(v, v), hn::Set(d, gelu_cubic), hn::Set(d, gelu_linear)));
    put_part(d, hn::Mul(v, sigmoid_of(d, u2)), out + i, count);
  });
}

template <class T>
void gelu_gradient_rows(T* dx, const T* dy, const T* x, std::uint64_t n) {
  each_vector(n, [&](auto d, std::uint64_t i, std::uint64_t count) {
    const auto v = load_part(d, x + i, count);
    const auto square = hn::Mul(v, v);
    const auto u2 = hn::Mul(v, hn::MulAdd(square, hn::Set(d, gelu_cubic), hn::Set(d, gelu_linear)));
    const auto slope = hn::MulAdd(square, hn::Set(d, 3 * gelu_cubic), hn::Set(d, gelu_linear));
    const auto s = sigmoid_of(d, u2);
    // s + x s (1 - s) (2u)'
    const auto xs = hn::Mul(hn::Mul(v, slope), s);
    const auto derivative = hn::Add(s, hn::NegMulAdd(xs, s, xs));
    put_part(d, hn::Mul(load_part(d, dy + i, count), derivative), dx + i, count);
  });
}

template <class T>
void swiglu_row(T* out, const T* gate, const T* up, std::uint64_t n) {
  each_vector(n, [&](auto d, std::uint64_t i, std::uint64_t count) {
    const auto g = load_part(d, gate + i, count);
    const auto u = load_part(d, up + i, count);
    put_part(d, hn::Mul(hn::Mul(g, sigmoid_of(d, g)), u), out + i, count);
  });
}

template <class T>
void swiglu_gradient_row(
    T* dgate, T* dup, const T* dy, const T* gate, const T* up, std::uint64_t n) {
  each_vector(n, [&](auto d, std::uint64_t i, std::uint64_t count) {
    const auto g = load_part(d, gate + i, count);
    const auto u = load_part(d, up + i, count);
    const auto y = load_part(d, dy + i, count);
    const auto s = sigmoid_of(d, g);
    const auto gs = hn::Mul(g, s);
    const auto derivative = hn::Add(s, hn::NegMulAdd(gs, s, gs));
    put_part(d, hn::Mul(hn::Mul(y, u), derivative), dgate + i, count);
    put_part(d, hn::Mul(y, gs), dup + i, count);
  });
}

void gelu_f32(float* out, const float* x, std::uint64_t n) {
  gelu_rows(out, x, n);
}
void gelu_bf16(Bf16* out, const Bf16* x, std::uint64_t n) {
  gelu_rows(out, x, n);
}
void gelu_gradient_f32(float* dx, const float* dy, const float* x, std::uint64_t n) {
  gelu_gradient_rows(dx, dy, x, n);
}
void gelu_gradient_bf16(Bf16* dx, const Bf16* dy, const Bf16* x, std::uint64_t n) {
  gelu_gradient_rows(dx, dy, x, n);
}
void swiglu_f32(float* out, const float* gate, const float* up, std::uint64_t n) {
  swiglu_row(out, gate, up, n);
}
void swiglu_bf16(Bf16* out, const Bf16* gate, const Bf16* up, std::uint64_t n) {
  swiglu_row(out, gate, up, n);
}
void swiglu_gradient_f32(float* dgate,
                         float* dup,
                         const float* dy,
                         const float* gate,
                         const float* up,
                         std::uint64_t n) {
  swiglu_gradient_row(dgate, dup, dy, gate, up, n);
}
void swiglu_gradient_bf16(
    Bf16* dgate, Bf16* dup, const Bf16* dy, const Bf16* gate, const Bf16* up, std::uint64_t n) {
  swiglu_gradient_row(dgate, dup, dy, gate, up, n);
}

}  // namespace troupe::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace troupe::kernels::cpu {
namespace {

HWY_EXPORT(gelu_f32);
HWY_EXPORT(gelu_bf16);
HWY_EXPORT(gelu_gradient_f32);
HWY_EXPORT(gelu_gradient_bf16);
HWY_EXPORT(swiglu_f32);
HWY_EXPORT(swiglu_bf16);
HWY_EXPORT(swiglu_gradient_f32);
HWY_EXPORT(swiglu_gradient_bf16);

/// Calls f(first element, count) over shards of a dense tensor.
template <class F>
void each_shard(Stream& stream, std::uint64_t n, F&& f) {
  constexpr std::uint64_t size = 1 << 15;
  stream.pool().run(shard_count(n, size), [&](std::uint64_t shard, std::uint32_t) {
    f(shard * size, std::min(size, n - shard * size));
  });
}

/// Calls f(row) over shards of rows.
template <class F>
void each_row(Stream& stream, const Tensor& x, F&& f) {
  const std::uint64_t size = rows_per_shard(x.columns());
  stream.pool().run(shard_count(x.rows(), size), [&](std::uint64_t shard, std::uint32_t) {
    const std::uint64_t end = std::min(x.rows(), (shard + 1) * size);
    for (std::uint64_t row = shard * size; row < end; ++row) f(row);
  });
}

}  // namespace

void gelu_forward(DType type, std::byte* out, const std::byte* x, std::uint64_t n) {
  if (type == DType::f32) {
    HWY_DYNAMIC_DISPATCH(gelu_f32)
    (reinterpret_cast<float*>(out), reinterpret_cast<const float*>(x), n);
  } else {
    HWY_DYNAMIC_DISPATCH(gelu_bf16)
    (reinterpret_cast<Bf16*>(out), reinterpret_cast<const Bf16*>(x), n);
  }
}

void gelu_backward(
    DType type, std::byte* dx, const std::byte* dy, const std::byte* x, std::uint64_t n) {
  if (type == DType::f32) {
    HWY_DYNAMIC_DISPATCH(gelu_gradient_f32)
    (reinterpret_cast<float*>(dx), reinterpret_cast<const float*>(dy),
     reinterpret_cast<const float*>(x), n);
  } else {
    HWY_DYNAMIC_DISPATCH(gelu_gradient_bf16)
    (reinterpret_cast<Bf16*>(dx), reinterpret_cast<const Bf16*>(dy),
     reinterpret_cast<const Bf16*>(x), n);
  }
}

void gelu_forward(Stream& stream, const Tensor& out, const Tensor& x) {
  const Bytes size = size_of(x.dtype);
  each_shard(stream, x.elements(), [&](std::uint64_t i, std::uint64_t n) {
    gelu_forward(x.dtype, out.data + i * size, x.data + i * size, n);
  });
}

void gelu_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x) {
  const Bytes size = size_of(x.dtype);
  each_shard(stream, x.elements(), [&](std::uint64_t i, std::uint64_t n) {
    gelu_backward(x.dtype, dx.data + i * size, dy.data + i * size, x.data + i * size, n);
  });
}

void swiglu_forward(Stream& stream, const Tensor& out, const Tensor& gate, const Tensor& up) {
  each_row(stream, gate, [&](std::uint64_t r) {
    if (gate.dtype == DType::f32) {
      HWY_DYNAMIC_DISPATCH(swiglu_f32)
      (row_of<float>(out, r), row_of<float>(gate, r), row_of<float>(up, r), gate.columns());
    } else {
      HWY_DYNAMIC_DISPATCH(swiglu_bf16)
      (row_of<Bf16>(out, r), row_of<Bf16>(gate, r), row_of<Bf16>(up, r), gate.columns());
    }
  });
}

void swiglu_backward(Stream& stream,
                     const Tensor& dgate,
                     const Tensor& dup,
                     const Tensor& dy,
                     const Tensor& gate,
                     const Tensor& up) {
  each_row(stream, gate, [&](std::uint64_t r) {
    if (gate.dtype == DType::f32) {
      HWY_DYNAMIC_DISPATCH(swiglu_gradient_f32)
      (row_of<float>(dgate, r), row_of<float>(dup, r), row_of<float>(dy, r), row_of<float>(gate, r),
       row_of<float>(up, r), gate.columns());
    } else {
      HWY_DYNAMIC_DISPATCH(swiglu_gradient_bf16)
      (row_of<Bf16>(dgate, r), row_of<Bf16>(dup, r), row_of<Bf16>(dy, r), row_of<Bf16>(gate, r),
       row_of<Bf16>(up, r), gate.columns());
    }
  });
}

}  // namespace troupe::kernels::cpu
#endif
