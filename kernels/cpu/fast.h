/// The fast CPU bodies. Shapes were checked by the callers in kernels/*.cpp.
#pragma once

#include "kernels/ops.h"

namespace troupe::kernels {

/// The scalars of an AdamW update in f32, the same for every body.
struct AdamWFactors {
  float gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2;
  float keep;           ///< 1 - learning rate x decay
  float step_size;      ///< learning rate / correction1
  float inverse_root2;  ///< 1 / sqrt(correction2)
  float epsilon;
};
AdamWFactors adamw_factors(const AdamW& args);

namespace cpu {

/// Elements [begin, end) of one sample of a dropout: all that its mask depends on.
struct DropoutRange {
  std::uint64_t begin = 0, end = 0;
  PhiloxCounter counter{};  ///< [0] is the block of four elements
  PhiloxKey key{};
  std::uint32_t threshold = 0;
  float scale = 1;
};

void matmul(Stream& stream, const Matmul& args);
void bias_gradient(Stream& stream, const Tensor& out, const Tensor& in);
void norm_forward(Stream& stream, const NormForward& args);
void norm_backward_input(Stream& stream, const NormBackwardInput& args);
void norm_backward_parameters(Stream& stream, const NormBackwardParameters& args);
void attention_forward(Stream& stream, const AttentionForward& args);
void attention_backward(Stream& stream, const AttentionBackward& args);
void attention_decode(Stream& stream, const AttentionDecode& args);
void rope(Stream& stream, const Rope& args);
/// Of n elements, on the calling thread.
void gelu_forward(DType type, std::byte* out, const std::byte* x, std::uint64_t n);
void gelu_backward(
    DType type, std::byte* dx, const std::byte* dy, const std::byte* x, std::uint64_t n);
void add(DType type, std::byte* out, const std::byte* a, const std::byte* b, std::uint64_t n);
void gelu_forward(Stream& stream, const Tensor& out, const Tensor& x);
void gelu_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x);
void swiglu_forward(Stream& stream, const Tensor& out, const Tensor& gate, const Tensor& up);
void swiglu_backward(Stream& stream,
                     const Tensor& dgate,
                     const Tensor& dup,
                     const Tensor& dy,
                     const Tensor& gate,
                     const Tensor& up);
void add(Stream& stream, const Tensor& out, const Tensor& a, const Tensor& b);
void dropout(Stream& stream, const Tensor& out, const Tensor& x, const DropoutKey& key, double p);
void fill(Stream& stream, const Tensor& out, float value);
void copy(Stream& stream, const Tensor& out, const Tensor& x);
void embedding_forward(Stream& stream, const EmbeddingForward& args);
void embedding_backward(Stream& stream, const EmbeddingBackward& args);
double head_loss(Stream& stream, const HeadLoss& args);
double head_loss_backward(Stream& stream, const HeadLossBackward& args);
double sum_of_squares(Stream& stream, const Tensor& x);
void adamw(Stream& stream, const AdamW& args);

}  // namespace cpu
}  // namespace troupe::kernels
