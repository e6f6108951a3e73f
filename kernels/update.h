/// What happens to gradients and weights once a step: norms, AdamW, hashes.
#pragma once

#include <cstdint>

#include "devices/device.h"
#include "devices/tensor.h"

namespace troupe::kernels {

/// Sum of squares of a dense f32 tensor, in double over fixed shards. NaN or infinity when an
/// element is not finite; finite otherwise. 0 on the meta device.
double sum_of_squares(Stream& stream, Tensor x);

/// One AdamW update (Loshchilov & Hutter 2019, algorithm 2), all tensors dense f32 of one shape:
///   g = gradient * gradient_scale
///   m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g^2
///   w = w (1 - learning_rate weight_decay);   w -= learning_rate / correction1 * m /
///       (sqrt(v) / sqrt(correction2) + epsilon)
/// with correction_i = 1 - beta_i^step.
struct AdamW {
  Tensor weight, first_moment, second_moment, gradient;
  Tensor weight_bf16;  ///< bf16 copy of the new weight, written; rank 0: none
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;    ///< 0 for tensors that do not decay
  double gradient_scale = 1;  ///< min(1, clip / norm)
  std::uint64_t step = 1;     ///< from 1
};
void adamw(Stream& stream, const AdamW& args);

/// Hash of a dense tensor's bytes: XXH3 of 1 MiB pieces, then XXH3 of their hashes. 0 on meta.
/// `seed` chains several tensors.
std::uint64_t hash_bytes(Stream& stream, Tensor x, std::uint64_t seed = 0);

}  // namespace troupe::kernels
