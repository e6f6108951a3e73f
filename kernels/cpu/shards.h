/// How ops are cut into shards: functions of shapes alone.
#pragma once

#include <cstdint>

namespace troupe::kernels::cpu {

/// Parts of at most `size` that n falls into.
constexpr std::uint64_t shard_count(std::uint64_t n, std::uint64_t size) {
  return (n + size - 1) / size;
}

/// Rows so that a shard has about `elements` elements, at least one.
constexpr std::uint64_t rows_per_shard(std::uint64_t columns, std::uint64_t elements = 1 << 15) {
  return columns >= elements ? 1 : elements / (columns == 0 ? 1 : columns);
}

/// Rows and columns of a matrix.
struct MatrixPart {
  std::uint64_t row = 0, rows = 0, column = 0, columns = 0;
};

/// The part of a matrix product that one thread computes in one call.
struct MatmulShards {
  std::uint64_t rows = 1;
  std::uint64_t columns = 1;
};
MatmulShards matmul_shards(std::uint64_t m, std::uint64_t n, std::uint32_t threads);

}  // namespace troupe::kernels::cpu
