#include "kernels/embedding.h"

#include "kernels/cpu/fast.h"
#include "kernels/element.h"

namespace troupe::kernels {
namespace {

template <class T>
void naive_forward(const EmbeddingForward& args) {
  for (std::uint64_t row = 0; row < args.out.rows(); ++row) {
    const float* token =
        row_of<float>(args.token_table, static_cast<std::uint64_t>(args.tokens[row]));
    const float* position = present(args.position_table)
                                ? row_of<float>(args.position_table, row % args.length)
                                : nullptr;
    for (std::uint64_t i = 0; i < args.out.columns(); ++i) {
      store(row_of<T>(args.out, row)[i], position == nullptr ? token[i] : token[i] + position[i]);
    }
  }
}

template <class T>
void naive_backward(const EmbeddingBackward& args) {
  for (std::uint64_t row = 0; row < args.dout.rows(); ++row) {
    const T* d = row_of<T>(args.dout, row);
    float* token = row_of<float>(args.token_gradient, static_cast<std::uint64_t>(args.tokens[row]));
    for (std::uint64_t i = 0; i < args.dout.columns(); ++i) token[i] += to_float(d[i]);
    if (!present(args.position_gradient)) continue;
    float* position = row_of<float>(args.position_gradient, row % args.length);
    for (std::uint64_t i = 0; i < args.dout.columns(); ++i) position[i] += to_float(d[i]);
  }
}

/// `x`: activations or their gradient; `table`, `positions`: tables or theirs.
void check(const Stream& stream,
           const Tensor& x,
           const Tensor& table,
           const Tensor& positions,
           std::span<const std::int32_t> tokens,
           std::uint32_t length) {
  EXPECTS(is_float(x) && length > 0 && x.rows() % length == 0);
  EXPECTS(table.dtype == DType::f32 && table.columns() == x.columns());
  EXPECTS(!present(positions) || (positions.dtype == DType::f32 && positions.rows() >= length &&
                                  positions.columns() == x.columns()));
  EXPECTS(stream.body() == Stream::Body::meta || tokens.size() == x.rows());
}

}  // namespace

void embedding_forward(Stream& stream, const EmbeddingForward& args) {
  const Tensor& out = args.out;
  check(stream, out, args.token_table, args.position_table, args.tokens, args.length);
  const bool positions = present(args.position_table);
  const OpCost cost{0, positions ? static_cast<double>(out.elements()) : 0.0,
                    out.bytes() + out.elements() * (positions ? 8 : 4) + out.rows() * 4};
  if (counted(stream, cost)) return;
  if (stream.body() == Stream::Body::fast) return cpu::embedding_forward(stream, args);
  with_float_type(out.dtype, [&](auto type) { naive_forward<decltype(type)>(args); });
}

void embedding_backward(Stream& stream, const EmbeddingBackward& args) {
  const Tensor& dout = args.dout;
  check(stream, dout, args.token_gradient, args.position_gradient, args.tokens, args.length);
  const std::uint64_t tables = present(args.position_gradient) ? 2 : 1;
  const OpCost cost{0, static_cast<double>(tables * dout.elements()),
                    dout.bytes() + dout.elements() * 8 * tables + dout.rows() * 4};
  if (counted(stream, cost)) return;
  if (stream.body() == Stream::Body::fast) return cpu::embedding_backward(stream, args);
  with_float_type(dout.dtype, [&](auto type) { naive_backward<decltype(type)>(args); });
}

}  // namespace troupe::kernels
