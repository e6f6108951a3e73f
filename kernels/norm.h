/// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019) over the last dimension.
/// x, out and their gradients are f32 or bf16 (all of one call alike); gain, bias, statistics and
/// parameter gradients are f32.
#pragma once

#include "devices/device.h"
#include "devices/tensor.h"

namespace troupe::kernels {

enum class NormKind : std::uint8_t { layer, rms };

/// out = (x - mean) * rstd * gain + bias; RMSNorm without mean and bias.
/// With `residual`, x is first replaced: sum = x + residual (rounded to its type), and sum is
/// normalised.
struct NormForward {
  NormKind kind = NormKind::layer;
  Tensor out;       ///< (rows, C)
  Tensor x;         ///< (rows, C)
  Tensor residual;  ///< (rows, C), rank 0: none
  Tensor sum;       ///< (rows, C), written when there is a residual; may be x or residual itself
  Tensor gain;      ///< (C)
  Tensor bias;      ///< (C); rank 0 for RMSNorm
  Tensor mean;      ///< (rows) written; rank 0 for RMSNorm
  Tensor rstd;      ///< (rows) written
  double epsilon = 1e-5;
};
void norm_forward(Stream& stream, const NormForward& args);

/// dx = gradient of the norm's input. With accumulate, dx += (the residual path's gradient is
/// already there). dx may be dy itself when not accumulating.
struct NormBackwardInput {
  NormKind kind = NormKind::layer;
  Tensor dx;    ///< (rows, C)
  Tensor dy;    ///< (rows, C)
  Tensor x;     ///< (rows, C): the input, or the sum with the residual
  Tensor gain;  ///< (C)
  Tensor mean;  ///< (rows); rank 0 for RMSNorm
  Tensor rstd;  ///< (rows)
  bool accumulate = false;
};
void norm_backward_input(Stream& stream, const NormBackwardInput& args);

/// dgain += ..., dbias += ...
struct NormBackwardParameters {
  NormKind kind = NormKind::layer;
  Tensor dgain;  ///< f32 (C)
  Tensor dbias;  ///< f32 (C); rank 0 for RMSNorm
  Tensor dy;     ///< (rows, C)
  Tensor x;      ///< (rows, C)
  Tensor mean;   ///< (rows); rank 0 for RMSNorm
  Tensor rstd;   ///< (rows)
};
void norm_backward_parameters(Stream& stream, const NormBackwardParameters& args);

}  // namespace troupe::kernels
