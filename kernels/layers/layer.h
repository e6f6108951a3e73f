/// One layer of a model: what it keeps, and its forward and backward over ops. A layer owns no
/// memory and no state but views of its parameters, so any placement of layers runs the same code.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "devices/device.h"
#include "kernels/layers/area.h"
#include "kernels/layers/parameters.h"
#include "planner/model.h"
#include "planner/recompute.h"

namespace troupe::kernels {

/// Sequences and tokens per sequence of one call; never above what memory was taken for.
struct Extent {
  std::uint32_t sequences = 0;
  std::uint32_t length = 0;
  std::uint64_t rows() const { return std::uint64_t{sequences} * length; }
};

/// What a call needs beside tensors.
struct Call {
  Extent extent;
  std::span<const std::int32_t> tokens;   ///< first stage only; empty on the meta device
  std::span<const std::int32_t> targets;  ///< last stage only; empty on the meta device
  double dropout = 0;                     ///< 0 outside training
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint64_t first_sample = 0;
  double loss_scale = 0;  ///< 1 / trained tokens of the step, or 0
  /// False for the first backward of a step: the gradients of linear weights are then written, not
  /// added to; all others were cleared (Parameter::written_first).
  bool accumulate = true;
  Area workspace;  ///< workspace_bytes of the action
};

/// Tensors of one backward call.
struct BackwardCall {
  Tensor input;            ///< as in forward
  Tensor output_gradient;  ///< rank 0 for the head
  /// Written; may be output_gradient itself. For the embedding, which has nobody before it: scratch
  /// of the same shape.
  Tensor input_gradient;
  Area saved;
  Area deferred;
};

class Layer {
 public:
  virtual ~Layer() = default;

  virtual Bytes saved_bytes(const Extent& extent) const = 0;
  virtual Bytes deferred_bytes(const Extent& extent) const = 0;
  virtual Bytes forward_workspace_bytes(const Extent& extent) const = 0;
  virtual Bytes backward_workspace_bytes(const Extent& extent) const = 0;

  /// Fills `saved`. Returns the sum of token losses (head), else 0.
  virtual double forward(Stream& stream, const Call& call, Tensor input, Area saved) = 0;
  /// (sequences, T, width) in the compute type, within `saved`; rank 0 for the head.
  virtual Tensor output(const Extent& extent, Area saved) const = 0;
  /// Input gradient, gradients of norms and of token tables; fills `deferred`.
  virtual void backward_input(Stream& stream, const Call& call, const BackwardCall& backward) = 0;
  /// Gradients of matrices and biases, from `saved` and `deferred`; input_gradient is not used.
  /// A block that computes again reads that from the workspace of its backward_input: the two then
  /// follow each other with the same workspace.
  virtual void backward_weight(Stream& stream, const Call& call, const BackwardCall& backward) = 0;
};

/// Layers keep views: carve the parameters first.
std::unique_ptr<Layer> make_embedding(const ModelSpec& model,
                                      DType compute,
                                      std::span<Parameter> parameters);
std::unique_ptr<Layer> make_block(const ModelSpec& model,
                                  DType compute,
                                  std::uint32_t layer,
                                  Recompute recompute,
                                  std::span<Parameter> parameters);

/// The head also gives losses and logits without gradients.
class HeadLayer : public Layer {
 public:
  /// Sum of token losses; `saved` serves as scratch.
  virtual double loss(Stream& stream, const Call& call, Tensor input) = 0;
  /// out (sequences, vocabulary) f32: logits of each sequence's last position.
  virtual void logits(Stream& stream, const Call& call, Tensor input, Tensor out) = 0;
};
std::unique_ptr<HeadLayer> make_head(const ModelSpec& model,
                                     DType compute,
                                     std::span<Parameter> parameters);

/// `tensor` with its first two dimensions taken together.
Tensor as_rows(const Tensor& tensor);
/// A scratch tensor of at least `bytes` for an op's workspace.
Tensor scratch(Area& area, Bytes bytes);

}  // namespace troupe::kernels
