/// A matrix product with weights stored either way round: GPT-2 keeps (in, out), Llama (out, in).
#pragma once

#include "kernels/layers/layer.h"
#include "kernels/ops.h"

namespace troupe::kernels {

struct Linear {
  Tensor weight;           ///< in the compute type
  Tensor weight_gradient;  ///< f32, shaped as the weight
  Tensor bias;             ///< f32 (out); rank 0: none
  Tensor bias_gradient;    ///< f32 (out)
  bool out_by_in = false;  ///< weight is (out, in)

  std::uint64_t in() const { return out_by_in ? weight.shape[1] : weight.shape[0]; }
  std::uint64_t out() const { return out_by_in ? weight.shape[0] : weight.shape[1]; }

  /// y (rows, out) = x (rows, in) W + bias
  void forward(Stream& stream,
               Tensor y,
               Tensor x,
               Tensor workspace,
               const MatmulEpilogue& epilogue = {}) const;
  /// dx (rows, in), written
  void backward_input(Stream& stream,
                      Tensor dx,
                      Tensor dy,
                      Tensor workspace,
                      const MatmulEpilogue& epilogue = {}) const;
  /// weight_gradient = or, with accumulate, += ; bias_gradient += always
  void backward_weight(
      Stream& stream, Tensor dy, Tensor x, Tensor workspace, bool accumulate) const;

  Bytes forward_workspace(std::uint64_t rows) const;
  Bytes backward_workspace(std::uint64_t rows) const;
};

}  // namespace troupe::kernels
