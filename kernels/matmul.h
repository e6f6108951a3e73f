/// Matrix products: the forms that forward, input gradient and weight gradient need.
/// Each element's sum has a fixed order (kernels/cpu/product.h), however the work is cut.
#pragma once

#include "devices/device.h"
#include "devices/tensor.h"

namespace troupe::kernels {

/// Which operand is stored transposed. out is (M, N) always.
enum class MatmulForm : std::uint8_t {
  nn,  ///< a (M, K), b (K, N)
  nt,  ///< a (M, K), b (N, K)
  tn   ///< a (K, M), b (K, N)
};

/// What is done with rows of out while they are in a cache. The same as the op of that name on the
/// whole of out, to the bit.
struct MatmulEpilogue {
  enum class Kind : std::uint8_t {
    none,
    gelu,           ///< other = gelu(out)
    gelu_gradient,  ///< out = out gelu'(other)
    add             ///< out = other + out
  };
  Kind kind = Kind::none;
  Tensor other;  ///< shaped and typed as out; both dense
};

/// Tensors of any rank are taken as (rows, columns); rows may be strided. a and b have one type.
/// f32 x f32 -> f32; bf16 x bf16 -> f32 or bf16, summed in f32.
struct Matmul {
  MatmulForm form = MatmulForm::nn;
  Tensor out;
  Tensor a;
  Tensor b;
  Tensor bias;              ///< f32 (N), added to every row; rank 0: none. Not with accumulate.
  bool accumulate = false;  ///< out += ...; only with an f32 out
  Tensor workspace;         ///< at least matmul_workspace(...) bytes, 64-byte aligned
  /// f32 (N), with tn: column_sums[n] += sum over k of b[k, n], which is bias_gradient of b while b
  /// is read anyway; rank 0: none.
  Tensor column_sums;
  MatmulEpilogue epilogue;
};
void matmul(Stream& stream, const Matmul& args);

/// Bytes that any matmul of this shape needs, on every machine and with any number of threads. The
/// CPU bodies need none: packed panels belong to their thread, at most 2 MiB each, and not to an
/// arena.
Bytes matmul_workspace(
    MatmulForm form, DType type, std::uint64_t m, std::uint64_t n, std::uint64_t k);

/// out[n] += sum over rows of in[row, n]. out f32 (N), in f32 or bf16 (rows, N).
void bias_gradient(Stream& stream, Tensor out, Tensor in);

}  // namespace troupe::kernels
