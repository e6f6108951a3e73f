#include <algorithm>

#include "devices/compute_pool.h"
#include "kernels/cpu/fast.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/shards.h"

namespace troupe::kernels::cpu {
namespace {

/// Equal parts of at most `at_most`, rounded up to whole cache lines of f32.
std::uint64_t part(std::uint64_t n, std::uint64_t at_most) {
  const std::uint64_t parts = std::max<std::uint64_t>(1, shard_count(n, at_most));
  return std::max<std::uint64_t>(1, (shard_count(n, parts) + 15) / 16 * 16);
}

}  // namespace

MatmulShards matmul_shards(std::uint64_t m, std::uint64_t n, std::uint32_t threads) {
  // Every shard packs its part of b. Cut by columns, no part is packed twice; cut by rows, each is
  // packed for fewer products. Four shards a thread even out threads that are not equally fast.
  MatmulShards s{std::max<std::uint64_t>(m, 1), std::max<std::uint64_t>(n, 1)};  // of none: 0
  if (threads == 1) return s;
  const auto count = [&] { return shard_count(m, s.rows) * shard_count(n, s.columns); };
  const std::uint64_t wanted = 4 * threads;
  s.columns = part(n, std::max<std::uint64_t>(n / wanted, 128));
  if (count() < wanted) s.rows = part(m, std::max<std::uint64_t>(m * count() / wanted, 512));
  const std::uint64_t enough = 2 * threads;
  if (count() < enough) s.columns = part(n, 64);
  if (count() < enough) s.rows = part(m, 128);
  if (count() < enough) s.rows = part(m, 64);
  if (count() < enough) s.columns = part(n, 16);
  return s;
}

namespace {

/// An epilogue on one shard of out.
struct ShardEpilogue {
  MatmulEpilogue epilogue;
  Tensor out;
  std::uint64_t row, column;  ///< where the shard begins
};

void apply(const void* context, const MatrixPart& part) {
  const auto& shard = *static_cast<const ShardEpilogue*>(context);
  const MatmulEpilogue& epilogue = shard.epilogue;
  const Tensor& out = shard.out;
  const Tensor& other = epilogue.other;
  const Bytes size = size_of(out.dtype);
  const auto at = [&](const Tensor& t, std::uint64_t i) {
    return t.data + ((shard.row + i) * t.row_stride + shard.column + part.column) * size;
  };
  for (std::uint64_t i = part.row; i < part.row + part.rows; ++i) {
    std::byte* y = at(out, i);
    std::byte* x = at(other, i);
    switch (epilogue.kind) {
      case MatmulEpilogue::Kind::none: break;
      case MatmulEpilogue::Kind::gelu: gelu_forward(out.dtype, x, y, part.columns); break;
      case MatmulEpilogue::Kind::gelu_gradient:
        gelu_backward(out.dtype, y, y, x, part.columns);
        break;
      case MatmulEpilogue::Kind::add: add(out.dtype, y, x, y, part.columns); break;
    }
  }
}

}  // namespace

void matmul(Stream& stream, const Matmul& args) {
  constexpr std::uint64_t rounded = 512;
  const std::uint64_t m = args.out.rows();
  const std::uint64_t n = args.out.columns();
  // The library's sums may depend on the shape of a shard, which then may not depend on threads.
  const bool by_library = args.a.dtype == DType::bf16 && has_bf16_products();
  MatmulShards s = matmul_shards(m, n, by_library ? 4 : stream.pool().threads());
  // Sums that will be rounded wait in the thread's memory: 1 MiB.
  if (args.out.dtype == DType::bf16) s = {std::min(s.rows, rounded), std::min(s.columns, rounded)};
  const std::uint64_t across = shard_count(n, s.columns);
  const Bytes in = size_of(args.a.dtype);
  const Bytes out = size_of(args.out.dtype);
  const bool sums = args.column_sums.rank != 0;
  if (sums && by_library) bias_gradient(stream, args.column_sums, args.b);
  stream.pool().run(shard_count(m, s.rows) * across, [&](std::uint64_t shard, std::uint32_t) {
    const std::uint64_t i = shard / across * s.rows;
    const std::uint64_t j = shard % across * s.columns;
    Product p;
    p.m = std::min(s.rows, m - i);
    p.n = std::min(s.columns, n - j);
    p.a_transposed = args.form == MatmulForm::tn;
    p.b_transposed = args.form == MatmulForm::nt;
    p.k = p.a_transposed ? args.a.rows() : args.a.columns();
    p.lda = args.a.row_stride;
    p.ldb = args.b.row_stride;
    p.ldc = args.out.row_stride;
    p.accumulate = args.accumulate;
    p.bias = args.bias.rank != 0;
    p.in = args.a.dtype;
    p.out = args.out.dtype;
    if (sums && !by_library && i == 0) p.column_sums = args.column_sums.as<float>() + j;
    const ShardEpilogue epilogue{args.epilogue, args.out, i, j};
    if (args.epilogue.kind != MatmulEpilogue::Kind::none) {
      p.rows_done = apply;
      p.context = &epilogue;
    }
    multiply(p, args.a.data + (p.a_transposed ? i : i * p.lda) * in,
             args.b.data + (p.b_transposed ? j * p.ldb : j) * in,
             args.out.data + (i * p.ldc + j) * out, p.bias ? args.bias.as<float>() + j : nullptr);
  });
}

}  // namespace troupe::kernels::cpu
