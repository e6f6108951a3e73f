#include "kernels/elementwise.h"

#include <cmath>
#include <cstring>

#include "kernels/cpu/fast.h"
#include "kernels/element.h"
#include "kernels/random.h"

namespace troupe::kernels {
namespace {

// gelu(x) = x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3)
constexpr double gelu_slope = 0.79788456080286535588;
constexpr double gelu_cubic = 0.044715;

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(gelu_slope * (x + gelu_cubic * x * x * x)));
}

double gelu_derivative(double x) {
  const double t = std::tanh(gelu_slope * (x + gelu_cubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * gelu_slope * (1 + 3 * gelu_cubic * x * x);
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

/// Calls f(type, row, column) for every element.
template <class F>
void each(const Tensor& shape, F&& f) {
  with_float_type(shape.dtype, [&](auto type) {
    for (std::uint64_t row = 0; row < shape.rows(); ++row) {
      for (std::uint64_t i = 0; i < shape.columns(); ++i) f(type, row, i);
    }
  });
}

template <class T>
double at(const Tensor& t, std::uint64_t row, std::uint64_t column, T) {
  return static_cast<double>(to_float(row_of<T>(t, row)[column]));
}

template <class T>
void put(const Tensor& t, std::uint64_t row, std::uint64_t column, T, double value) {
  store(row_of<T>(t, row)[column], static_cast<float>(value));
}

void naive_dropout(const Tensor& out, const Tensor& x, const DropoutKey& key, double p) {
  const std::uint64_t samples = x.rank == 0 ? 0 : x.shape[0];
  const std::uint64_t size = samples == 0 ? 0 : x.elements() / samples;
  const std::uint32_t threshold = dropout_threshold(p);
  const float scale = dropout_scale(p);
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    for (std::uint64_t s = 0; s < samples; ++s) {
      for (std::uint64_t i = 0; i < size; ++i) {
        const std::uint32_t word = dropout_words(key, key.first_sample + s, i / 4)[i % 4];
        const float value = to_float(x.as<T>()[s * size + i]);
        store(out.as<T>()[s * size + i], word >= threshold ? value * scale : 0.0f);
      }
    }
  });
}

}  // namespace

void gelu_forward(Stream& stream, Tensor out, Tensor x) {
  EXPECTS(is_float(x) && same_matrix(out, x) && out.dense() && x.dense());
  if (counted(stream, {0, 14 * static_cast<double>(x.elements()), 2 * x.bytes()})) return;
  if (stream.body() == Stream::Body::fast) return cpu::gelu_forward(stream, out, x);
  each(x, [&](auto t, auto row, auto i) { put(out, row, i, t, gelu(at(x, row, i, t))); });
}

void gelu_backward(Stream& stream, Tensor dx, Tensor dy, Tensor x) {
  EXPECTS(is_float(x) && same_matrix(dx, x) && same_matrix(dy, x));
  EXPECTS(dx.dense() && dy.dense() && x.dense());
  if (counted(stream, {0, 20 * static_cast<double>(x.elements()), 3 * x.bytes()})) return;
  if (stream.body() == Stream::Body::fast) return cpu::gelu_backward(stream, dx, dy, x);
  each(x, [&](auto t, auto row, auto i) {
    put(dx, row, i, t, at(dy, row, i, t) * gelu_derivative(at(x, row, i, t)));
  });
}

void swiglu_forward(Stream& stream, Tensor out, Tensor gate, Tensor up) {
  EXPECTS(is_float(gate) && same_matrix(out, gate) && same_matrix(up, gate));
  if (counted(stream, {0, 11 * static_cast<double>(gate.elements()), 3 * gate.bytes()})) return;
  if (stream.body() == Stream::Body::fast) return cpu::swiglu_forward(stream, out, gate, up);
  each(gate, [&](auto t, auto row, auto i) {
    const double g = at(gate, row, i, t);
    put(out, row, i, t, g * sigmoid(g) * at(up, row, i, t));
  });
}

void swiglu_backward(Stream& stream, Tensor dgate, Tensor dup, Tensor dy, Tensor gate, Tensor up) {
  EXPECTS(is_float(gate) && same_matrix(up, gate) && same_matrix(dy, gate));
  EXPECTS(same_matrix(dgate, gate) && same_matrix(dup, gate));
  if (counted(stream, {0, 16 * static_cast<double>(gate.elements()), 5 * gate.bytes()})) return;
  if (stream.body() == Stream::Body::fast) {
    return cpu::swiglu_backward(stream, dgate, dup, dy, gate, up);
  }
  each(gate, [&](auto t, auto row, auto i) {
    const double g = at(gate, row, i, t);
    const double u = at(up, row, i, t);
    const double d = at(dy, row, i, t);
    const double s = sigmoid(g);
    put(dgate, row, i, t, d * u * s * (1 + g * (1 - s)));
    put(dup, row, i, t, d * g * s);
  });
}

void add(Stream& stream, Tensor out, Tensor a, Tensor b) {
  EXPECTS(is_float(out) && out.dtype == a.dtype && out.dtype == b.dtype);
  EXPECTS(out.elements() == a.elements() && out.elements() == b.elements());
  EXPECTS(out.dense() && a.dense() && b.dense());
  if (counted(stream, {0, static_cast<double>(out.elements()), 3 * out.bytes()})) return;
  if (stream.body() == Stream::Body::fast) return cpu::add(stream, out, a, b);
  with_float_type(out.dtype, [&](auto type) {
    using T = decltype(type);
    for (std::uint64_t i = 0; i < out.elements(); ++i) {
      store(out.as<T>()[i], to_float(a.as<T>()[i]) + to_float(b.as<T>()[i]));
    }
  });
}

void dropout(Stream& stream, Tensor out, Tensor x, const DropoutKey& key, double p) {
  EXPECTS(is_float(x) && out.dtype == x.dtype && out.elements() == x.elements());
  EXPECTS(out.dense() && x.dense() && p >= 0 && p < 1);
  if (counted(stream, {0, 20 * static_cast<double>(x.elements()), 2 * x.bytes()})) return;
  if (stream.body() == Stream::Body::fast) return cpu::dropout(stream, out, x, key, p);
  naive_dropout(out, x, key, p);
}

void fill(Stream& stream, Tensor out, float value) {
  EXPECTS(is_float(out));
  if (counted(stream, {0, 0, out.bytes()})) return;
  if (stream.body() == Stream::Body::fast) return cpu::fill(stream, out, value);
  each(out, [&](auto t, auto row, auto i) { put(out, row, i, t, static_cast<double>(value)); });
}

void copy(Stream& stream, Tensor out, Tensor x) {
  EXPECTS(out.rows() == x.rows() && out.columns() == x.columns());
  EXPECTS(out.dtype == x.dtype || (is_float(out) && is_float(x)));
  if (counted(stream, {0, 0, out.bytes() + x.bytes()})) return;
  if (stream.body() == Stream::Body::fast) return cpu::copy(stream, out, x);
  for (std::uint64_t row = 0; row < out.rows(); ++row) {
    if (out.dtype == x.dtype) {
      const Bytes size = size_of(out.dtype);
      std::memcpy(out.data + row * out.row_stride * size, x.data + row * x.row_stride * size,
                  out.columns() * size);
      continue;
    }
    for (std::uint64_t i = 0; i < out.columns(); ++i) {
      if (x.dtype == DType::f32) {
        row_of<Bf16>(out, row)[i] = to_bf16(row_of<float>(x, row)[i]);
      } else {
        row_of<float>(out, row)[i] = to_float(row_of<Bf16>(x, row)[i]);
      }
    }
  }
}

}  // namespace troupe::kernels
