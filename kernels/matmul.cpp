#include "kernels/matmul.h"

#include "kernels/cpu/fast.h"
#include "kernels/element.h"
#include "kernels/elementwise.h"

namespace troupe::kernels {
namespace {

struct Extents {
  std::uint64_t m, n, k;
};

Extents check(const Matmul& args) {
  const bool a_transposed = args.form == MatmulForm::tn;
  const bool b_transposed = args.form == MatmulForm::nt;
  const Extents e{a_transposed ? args.a.columns() : args.a.rows(),
                  b_transposed ? args.b.rows() : args.b.columns(),
                  a_transposed ? args.a.rows() : args.a.columns()};
  EXPECTS(is_float(args.a) && args.a.dtype == args.b.dtype);
  EXPECTS((b_transposed ? args.b.columns() : args.b.rows()) == e.k);
  EXPECTS(args.out.rows() == e.m && args.out.columns() == e.n);
  EXPECTS(args.out.dtype == DType::f32 ||
          (args.out.dtype == DType::bf16 && !args.accumulate && args.a.dtype == DType::bf16));
  EXPECTS(!present(args.bias) || (is_vector(args.bias, e.n) && !args.accumulate));
  EXPECTS(!present(args.column_sums) ||
          (args.form == MatmulForm::tn && is_vector(args.column_sums, e.n)));
  const bool epilogue = args.epilogue.kind != MatmulEpilogue::Kind::none;
  EXPECTS(!epilogue || (args.epilogue.other.dtype == args.out.dtype && !args.accumulate &&
                        args.out.dense() && args.epilogue.other.dense() &&
                        args.epilogue.other.rows() == e.m && args.epilogue.other.columns() == e.n));
  EXPECTS(args.workspace.bytes() >= matmul_workspace(args.form, args.a.dtype, e.m, e.n, e.k));
  return e;
}

OpCost cost_of(const Matmul& args, const Extents& e) {
  const double flops =
      2.0 * static_cast<double>(e.m) * static_cast<double>(e.n) * static_cast<double>(e.k);
  return {flops, present(args.bias) ? static_cast<double>(e.m * e.n) : 0.0,
          args.a.bytes() + args.b.bytes() + args.out.bytes() * (args.accumulate ? 2 : 1) +
              (present(args.bias) ? args.bias.bytes() : 0)};
}

template <class In, class Out>
void naive(const Matmul& args, const Extents& e) {
  const In* a = args.a.as<In>();
  const In* b = args.b.as<In>();
  const std::uint64_t a_row = args.form == MatmulForm::tn ? 1 : args.a.row_stride;
  const std::uint64_t a_col = args.form == MatmulForm::tn ? args.a.row_stride : 1;
  const std::uint64_t b_row = args.form == MatmulForm::nt ? 1 : args.b.row_stride;
  const std::uint64_t b_col = args.form == MatmulForm::nt ? args.b.row_stride : 1;
  for (std::uint64_t i = 0; i < e.m; ++i) {
    Out* out = row_of<Out>(args.out, i);
    for (std::uint64_t j = 0; j < e.n; ++j) {
      double sum = present(args.bias) ? static_cast<double>(args.bias.as<float>()[j]) : 0.0;
      for (std::uint64_t k = 0; k < e.k; ++k) {
        sum += static_cast<double>(to_float(a[i * a_row + k * a_col])) *
               static_cast<double>(to_float(b[k * b_row + j * b_col]));
      }
      if (args.accumulate) sum += static_cast<double>(to_float(out[j]));
      store(out[j], static_cast<float>(sum));
    }
  }
}

void apply(Stream& stream, const MatmulEpilogue& epilogue, const Tensor& out) {
  switch (epilogue.kind) {
    case MatmulEpilogue::Kind::none: return;
    case MatmulEpilogue::Kind::gelu: return gelu_forward(stream, epilogue.other, out);
    case MatmulEpilogue::Kind::gelu_gradient:
      return gelu_backward(stream, out, out, epilogue.other);
    case MatmulEpilogue::Kind::add: return add(stream, out, epilogue.other, out);
  }
}

}  // namespace

Bytes matmul_workspace(
    MatmulForm form, DType type, std::uint64_t m, std::uint64_t n, std::uint64_t k) {
  (void)form, (void)type, (void)m, (void)n, (void)k;
  return 0;
}

void matmul(Stream& stream, const Matmul& args) {
  const Extents e = check(args);
  const bool fast = stream.body() == Stream::Body::fast;
  if (fast) return cpu::matmul(stream, args);
  // The other bodies take the extra ops one after the other: so they are counted.
  if (present(args.column_sums)) bias_gradient(stream, args.column_sums, args.b);
  if (counted(stream, cost_of(args, e))) return apply(stream, args.epilogue, args.out);
  with_float_type(args.a.dtype, [&](auto in) {
    with_float_type(args.out.dtype, [&](auto out) { naive<decltype(in), decltype(out)>(args, e); });
  });
  apply(stream, args.epilogue, args.out);
}

void bias_gradient(Stream& stream, Tensor out, Tensor in) {
  EXPECTS(is_vector(out, in.columns()) && is_float(in));
  const OpCost cost{0, static_cast<double>(in.elements()), in.bytes() + 2 * out.bytes()};
  if (counted(stream, cost)) return;
  if (stream.body() == Stream::Body::fast) return cpu::bias_gradient(stream, out, in);
  with_float_type(in.dtype, [&](auto type) {
    for (std::uint64_t j = 0; j < in.columns(); ++j) {
      double sum = 0;
      for (std::uint64_t i = 0; i < in.rows(); ++i) {
        sum += static_cast<double>(to_float(row_of<decltype(type)>(in, i)[j]));
      }
      out.as<float>()[j] += static_cast<float>(sum);
    }
  });
}

}  // namespace troupe::kernels
