#include "kernels/head.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "devices/arena.h"
#include "kernels/cpu/fast.h"
#include "kernels/element.h"
#include "kernels/matmul.h"

namespace troupe::kernels {
namespace {

template <class T>
void naive_logits(const Tensor& x,
                  const Tensor& table,
                  std::uint64_t row,
                  std::vector<double>& out) {
  const T* a = row_of<T>(x, row);
  for (std::uint64_t v = 0; v < table.rows(); ++v) {
    const T* b = row_of<T>(table, v);
    double sum = 0;
    for (std::uint64_t i = 0; i < x.columns(); ++i) {
      sum += static_cast<double>(to_float(a[i])) * static_cast<double>(to_float(b[i]));
    }
    out[v] = sum;
  }
}

/// Turns logits into probabilities; returns the log-sum-exp.
double softmax(std::vector<double>& logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double l : logits) sum += std::exp(l - largest);
  const double lse = largest + std::log(sum);
  for (double& l : logits) l = std::exp(l - lse);
  return lse;
}

/// The gradient of one row: dlogits is in `d`.
template <class T>
void naive_row_gradients(const HeadLossBackward& args,
                         std::uint64_t row,
                         const std::vector<double>& d) {
  const Tensor& x = args.loss.x;
  const Tensor& table = args.loss.table;
  std::vector<double> dx(x.columns(), 0.0);
  for (std::uint64_t v = 0; v < table.rows(); ++v) {
    const T* w = row_of<T>(table, v);
    float* dw = row_of<float>(args.dtable, v);
    const T* a = row_of<T>(x, row);
    for (std::uint64_t i = 0; i < x.columns(); ++i) {
      dx[i] += d[v] * static_cast<double>(to_float(w[i]));
      dw[i] += static_cast<float>(d[v] * static_cast<double>(to_float(a[i])));
    }
  }
  for (std::uint64_t i = 0; i < x.columns(); ++i) {
    store(row_of<T>(args.dx, row)[i], static_cast<float>(dx[i]));
  }
}

template <class T>
double naive_loss(const HeadLoss& args, const HeadLossBackward* backward) {
  std::vector<double> logits(args.table.rows());
  double total = 0;
  for (std::uint64_t row = 0; row < args.x.rows(); ++row) {
    const std::int32_t target = args.targets[row];
    if (target < 0) {
      if (backward == nullptr) continue;
      T* dx = row_of<T>(backward->dx, row);
      for (std::uint64_t i = 0; i < args.x.columns(); ++i) store(dx[i], 0.0f);
      continue;
    }
    EXPECTS(static_cast<std::uint64_t>(target) < args.table.rows());
    naive_logits<T>(args.x, args.table, row, logits);
    const double logit = logits[static_cast<std::size_t>(target)];
    total += softmax(logits) - logit;
    if (backward == nullptr) continue;
    logits[static_cast<std::size_t>(target)] -= 1;
    for (double& d : logits) d *= backward->scale;
    naive_row_gradients<T>(*backward, row, logits);
  }
  return total;
}

void check(const Stream& stream, const HeadLoss& args) {
  const Tensor& x = args.x;
  EXPECTS(is_float(x) && args.table.dtype == x.dtype && args.table.columns() == x.columns());
  EXPECTS(stream.body() == Stream::Body::meta || args.targets.size() == x.rows());
  EXPECTS(args.workspace.bytes() >=
          head_workspace(x.rows(), args.table.rows(), x.columns(), x.dtype));
}

double product_flops(const Tensor& x, const Tensor& table) {
  return 2.0 * static_cast<double>(x.elements()) * static_cast<double>(table.rows());
}

}  // namespace

std::uint64_t head_tile_rows(std::uint64_t vocabulary) {
  // 4 MiB of logits stay in a cache; fewer than 256 rows would read and write the table's gradient
  // too often for what they compute.
  constexpr std::uint64_t tile_elements = std::uint64_t{1} << 20;
  return std::clamp<std::uint64_t>(
      std::bit_floor(tile_elements / std::max<std::uint64_t>(vocabulary, 1)), 256, 1024);
}

Bytes head_workspace(std::uint64_t rows,
                     std::uint64_t vocabulary,
                     std::uint64_t width,
                     DType type) {
  const std::uint64_t tile = std::min(rows, head_tile_rows(vocabulary));
  return arena_bytes(tile * head_tile_stride(vocabulary) * 4) + arena_bytes(rows * 8) +
         matmul_workspace(MatmulForm::nt, type, tile, vocabulary, width);
}

double head_loss(Stream& stream, const HeadLoss& args) {
  check(stream, args);
  const auto logits = static_cast<double>(args.x.rows() * args.table.rows());
  const OpCost cost{product_flops(args.x, args.table), 6 * logits,
                    args.x.bytes() + args.table.bytes() + static_cast<Bytes>(8 * logits)};
  if (counted(stream, cost)) return 0;
  if (stream.body() == Stream::Body::fast) return cpu::head_loss(stream, args);
  double loss = 0;
  with_float_type(args.x.dtype,
                  [&](auto type) { loss = naive_loss<decltype(type)>(args, nullptr); });
  return loss;
}

double head_loss_backward(Stream& stream, const HeadLossBackward& args) {
  check(stream, args.loss);
  const Tensor& x = args.loss.x;
  EXPECTS(same_matrix(args.dx, x) && args.dtable.dtype == DType::f32);
  EXPECTS(args.dtable.rows() == args.loss.table.rows());
  EXPECTS(args.dtable.columns() == x.columns());
  const auto logits = static_cast<double>(x.rows() * args.loss.table.rows());
  const OpCost cost{3 * product_flops(x, args.loss.table), 8 * logits,
                    2 * x.bytes() + args.loss.table.bytes() * 2 + args.dtable.bytes() * 2 +
                        static_cast<Bytes>(16 * logits)};
  if (counted(stream, cost)) return 0;
  if (stream.body() == Stream::Body::fast) return cpu::head_loss_backward(stream, args);
  double loss = 0;
  with_float_type(x.dtype, [&](auto type) { loss = naive_loss<decltype(type)>(args.loss, &args); });
  return loss;
}

void head_logits(Stream& stream, const HeadLogits& args) {
  EXPECTS(is_float(args.x) && args.table.dtype == args.x.dtype && args.out.dtype == DType::f32);
  EXPECTS(args.out.rows() == args.x.rows() && args.out.columns() == args.table.rows());
  Matmul product;
  product.form = MatmulForm::nt;
  product.out = args.out;
  product.a = args.x;
  product.b = args.table;
  product.workspace = args.workspace;
  matmul(stream, product);
}

}  // namespace troupe::kernels
