/// The output projection, softmax and cross-entropy in one: at most one tile of logits exists at a
/// time. A tile is head_tile_rows(vocabulary) rows by the whole vocabulary.
#pragma once

#include <cstdint>
#include <span>

#include "devices/device.h"
#include "devices/tensor.h"

namespace troupe::kernels {

/// Rows of one tile: a function of the vocabulary alone.
std::uint64_t head_tile_rows(std::uint64_t vocabulary);
/// f32 elements from one row of a tile to the next: whole cache lines.
constexpr std::uint64_t head_tile_stride(std::uint64_t vocabulary) {
  return (vocabulary + 15) / 16 * 16;
}

/// logits = x table^T. targets: one per row, -1 = not trained. Returns the sum over trained rows of
/// -log softmax(logits)[target], unscaled, added up in double in row order. On the meta device
/// targets may be empty and the result is 0.
struct HeadLoss {
  Tensor x;      ///< (rows, C), f32 or bf16
  Tensor table;  ///< (V, C) of x's type
  std::span<const std::int32_t> targets;
  Tensor workspace;  ///< head_workspace(rows, V, C, type)
};
double head_loss(Stream& stream, const HeadLoss& args);

/// The loss and its gradients in one pass. dlogits = (softmax - onehot(target)) * scale on trained
/// rows, 0 elsewhere. dx is written, dtable += .
struct HeadLossBackward {
  HeadLoss loss;
  Tensor dx;         ///< (rows, C) of x's type; must not be x
  Tensor dtable;     ///< f32 (V, C)
  double scale = 1;  ///< 1 / trained tokens of the step, or 0
};
double head_loss_backward(Stream& stream, const HeadLossBackward& args);

/// out (rows, V) f32 = x table^T.
struct HeadLogits {
  Tensor out;
  Tensor x;
  Tensor table;
  Tensor workspace;
};
void head_logits(Stream& stream, const HeadLogits& args);

/// For all three ops.
Bytes head_workspace(std::uint64_t rows, std::uint64_t vocabulary, std::uint64_t width, DType type);

}  // namespace troupe::kernels
