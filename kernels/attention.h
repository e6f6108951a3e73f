/// Causal self-attention with grouped key/value heads, and rotary positions. Forward keeps the
/// output and one log-sum-exp per row; backward recomputes the rest. No T x T matrix exists: a
/// block of query rows at a time.
#pragma once

#include "devices/device.h"
#include "devices/tensor.h"

namespace troupe::kernels {

struct AttentionShape {
  std::uint32_t sequences = 0;
  std::uint32_t length = 0;  ///< T
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;  ///< divides heads; query head h uses kv head h / (heads / kv_heads)
  std::uint32_t head_width = 0;
};

/// Scores are scaled by 1 / sqrt(head_width). Tensors may be column slices of one QKV matrix
/// (row_stride). All of one type, f32 or bf16.
struct AttentionForward {
  AttentionShape shape;
  Tensor out;        ///< (sequences * T, heads * head_width)
  Tensor q;          ///< (sequences * T, heads * head_width)
  Tensor k, v;       ///< (sequences * T, kv_heads * head_width)
  Tensor lse;        ///< f32 (sequences, heads, T), written
  Tensor workspace;  ///< attention_workspace(shape, type, false)
};
void attention_forward(Stream& stream, const AttentionForward& args);

struct AttentionBackward {
  AttentionShape shape;
  Tensor dq, dk, dv;    ///< written; shaped (and strided) as q, k, v; must not alias any input
  Tensor dout;          ///< (sequences * T, heads * head_width)
  Tensor out, q, k, v;  ///< as in forward
  Tensor lse;
  Tensor workspace;  ///< attention_workspace(shape, type, true)
};
void attention_backward(Stream& stream, const AttentionBackward& args);

Bytes attention_workspace(const AttentionShape& shape, DType type, bool backward);

/// New positions of one sequence against all positions up to their own: what generation does with
/// the keys and values that it kept. The same rows as attention_forward gives over all positions.
struct AttentionDecode {
  AttentionShape shape;     ///< one sequence; length: the new positions
  std::uint32_t first = 0;  ///< position of the first new one
  Tensor out;               ///< (length, heads * head_width)
  Tensor q;                 ///< (length, heads * head_width)
  Tensor k, v;              ///< (at least first + length, kv_heads * head_width), q's type
  Tensor workspace;         ///< attention_decode_workspace(shape, first + length, type)
};
void attention_decode(Stream& stream, const AttentionDecode& args);

/// For up to `keys` positions; grows with shape.length and with keys.
Bytes attention_decode_workspace(const AttentionShape& shape, std::uint64_t keys, DType type);

/// Rotates pairs (i, i + head_width / 2) of each head by position * theta^(-2i / head_width), in
/// place; `inverse` rotates back, which is the backward. x: (sequences * length, heads *
/// head_width), f32 or bf16, rows may be strided. Positions count from `first` in each sequence.
struct Rope {
  Tensor x;
  std::uint32_t length = 0;
  std::uint32_t head_width = 0;
  double theta = 10000.0;
  bool inverse = false;
  std::uint32_t first = 0;
};
void rope(Stream& stream, const Rope& args);

}  // namespace troupe::kernels
