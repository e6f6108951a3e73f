#include <algorithm>

#include "devices/compute_pool.h"
#include "kernels/cpu/fast.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/shards.h"

namespace troupe::kernels::cpu {
namespace {

/// Equal parts of at most `at_most`, rounded up to whole cache lines of f32.
std::uint64_t part(std::uint64_t n, std::uint64_t at_most) {
  const std::uint64_t parts = shard_count(n, at_most);
  return std::max<std::uint64_t>(1, (shard_count(n, parts) + 15) / 16 * 16);
}

}  // namespace

MatmulShards matmul_shards(MatmulForm form, std::uint64_t m, std::uint64_t n) {
  // Large tiles run faster and read their operands less often; at least eight keep a pool busy.
  const std::uint64_t widest = form == MatmulForm::tn ? 1024 : 512;
  MatmulShards s{part(m, 256), part(n, widest)};
  const auto few = [&] { return shard_count(m, s.rows) * shard_count(n, s.columns) < 8; };
  if (few()) s.rows = part(m, 128);
  if (few()) s.columns = part(n, widest / 2);
  if (few()) s.rows = part(m, 64);
  if (few()) s.columns = part(n, 128);
  return s;
}

void matmul(Stream& stream, const Matmul& args) {
  const std::uint64_t m = args.out.rows();
  const std::uint64_t n = args.out.columns();
  const MatmulShards s = matmul_shards(args.form, m, n);
  const std::uint64_t across = shard_count(n, s.columns);
  const Bytes in = size_of(args.a.dtype);
  const Bytes out = size_of(args.out.dtype);
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
    multiply(p, args.a.data + (p.a_transposed ? i : i * p.lda) * in,
             args.b.data + (p.b_transposed ? j * p.ldb : j) * in,
             args.out.data + (i * p.ldc + j) * out, p.bias ? args.bias.as<float>() + j : nullptr);
  });
}

}  // namespace troupe::kernels::cpu
