#include "kernels/layers/linear.h"

#include <algorithm>

namespace troupe::kernels {

void Linear::forward(
    Stream& stream, Tensor y, Tensor x, Tensor workspace, const MatmulEpilogue& epilogue) const {
  Matmul product;
  product.form = out_by_in ? MatmulForm::nt : MatmulForm::nn;
  product.out = y;
  product.a = x;
  product.b = weight;
  product.bias = bias;
  product.workspace = workspace;
  product.epilogue = epilogue;
  matmul(stream, product);
}

void Linear::backward_input(
    Stream& stream, Tensor dx, Tensor dy, Tensor workspace, const MatmulEpilogue& epilogue) const {
  Matmul product;
  product.form = out_by_in ? MatmulForm::nn : MatmulForm::nt;
  product.out = dx;
  product.a = dy;
  product.b = weight;
  product.workspace = workspace;
  product.epilogue = epilogue;
  matmul(stream, product);
}

void Linear::backward_weight(
    Stream& stream, Tensor dy, Tensor x, Tensor workspace, bool accumulate) const {
  Matmul product;
  product.form = MatmulForm::tn;
  product.out = weight_gradient;
  product.a = out_by_in ? dy : x;
  product.b = out_by_in ? x : dy;
  product.accumulate = accumulate;
  product.workspace = workspace;
  // Where dy is the right operand, its columns are summed on the way.
  if (bias.rank > 0 && !out_by_in) product.column_sums = bias_gradient;
  matmul(stream, product);
  if (bias.rank > 0 && out_by_in) kernels::bias_gradient(stream, bias_gradient, dy);
}

Bytes Linear::forward_workspace(std::uint64_t rows) const {
  const MatmulForm form = out_by_in ? MatmulForm::nt : MatmulForm::nn;
  return matmul_workspace(form, weight.dtype, rows, out(), in());
}

Bytes Linear::backward_workspace(std::uint64_t rows) const {
  const MatmulForm form = out_by_in ? MatmulForm::nn : MatmulForm::nt;
  const std::uint64_t m = out_by_in ? out() : in();
  const std::uint64_t n = out_by_in ? in() : out();
  return std::max(matmul_workspace(form, weight.dtype, rows, in(), out()),
                  matmul_workspace(MatmulForm::tn, weight.dtype, m, n, rows));
}

}  // namespace troupe::kernels
