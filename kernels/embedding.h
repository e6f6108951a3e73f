/// Token and position tables: look-up and its gradient.
#pragma once

#include <cstdint>
#include <span>

#include "devices/device.h"
#include "devices/tensor.h"

namespace troupe::kernels {

/// out[i] = tokens_table[tokens[i]] + positions_table[i % length], in f32, rounded once.
/// Token ids must be in range: they are checked where tokens enter.
struct EmbeddingForward {
  Tensor out;                            ///< (tokens.size(), C) f32 or bf16
  Tensor token_table;                    ///< f32 (V, C)
  Tensor position_table;                 ///< f32 (>= length, C); rank 0: none
  std::span<const std::int32_t> tokens;  ///< sequences * length; empty on the meta device
  std::uint32_t length = 0;
};
void embedding_forward(Stream& stream, const EmbeddingForward& args);

/// The tables' gradients, +=, each row's contributions in the order of token index.
struct EmbeddingBackward {
  Tensor token_gradient;     ///< f32 (V, C)
  Tensor position_gradient;  ///< f32 (>= length, C); rank 0: none
  Tensor dout;               ///< (tokens.size(), C) f32 or bf16
  std::span<const std::int32_t> tokens;
  std::uint32_t length = 0;
};
void embedding_backward(Stream& stream, const EmbeddingBackward& args);

}  // namespace troupe::kernels
