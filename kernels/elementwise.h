/// Elementwise ops over activations (f32 or bf16; computed in f32), conversions and fills.
/// Outputs may be one of the inputs unless said otherwise.
#pragma once

#include "devices/device.h"
#include "devices/tensor.h"

namespace troupe::kernels {

/// GELU in its tanh form (GPT-2's "gelu_new"). Dense tensors of one shape and type.
void gelu_forward(Stream& stream, Tensor out, Tensor x);
/// dx = dy * gelu'(x).
void gelu_backward(Stream& stream, Tensor dx, Tensor dy, Tensor x);

/// out = silu(gate) * up; all (rows, F), rows may be strided.
void swiglu_forward(Stream& stream, Tensor out, Tensor gate, Tensor up);
/// dgate and dup may be gate and up themselves.
void swiglu_backward(Stream& stream, Tensor dgate, Tensor dup, Tensor dy, Tensor gate, Tensor up);

/// out = a + b. Dense, one shape; a and b of out's type.
void add(Stream& stream, Tensor out, Tensor a, Tensor b);

/// Where a dropout mask comes from: element i of sample s depends on
/// (seed, step, tensor, s, i) alone.
struct DropoutKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint32_t tensor = 0;        ///< which dropout of the model
  std::uint64_t first_sample = 0;  ///< of row 0 of the first dimension
};
/// out = x kept with probability 1 - p and divided by it, else 0. Dense (samples, ...): the first
/// dimension is the sample. The backward is the same call on the gradient. p in [0, 1).
void dropout(Stream& stream, Tensor out, Tensor x, const DropoutKey& key, double p);

/// Sets every element; f32 or bf16, rows may be strided.
void fill(Stream& stream, Tensor out, float value);
/// Copies or converts between f32 and bf16 (round to nearest even); rows may be strided.
/// i32 and u16 only to themselves. out and x must not overlap.
void copy(Stream& stream, Tensor out, Tensor x);

}  // namespace troupe::kernels
