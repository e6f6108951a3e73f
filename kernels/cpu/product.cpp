// Matrix products in the manner of Goto and van de Geijn (Anatomy of High-Performance Matrix
// Multiplication, 2008): panels of b in the second-level cache, rows of a in the first, a tile of c
// in registers.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/product.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "devices/arena.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/softmax.h"
#include "kernels/cpu/vector-inl.h"
#include "kernels/element.h"

HWY_BEFORE_NAMESPACE();
namespace troupe::kernels::cpu::HWY_NAMESPACE {

constexpr std::uint64_t lanes = hn::MaxLanes(Wide());
/// The tile in registers: rows x vectors, with room for a row of b and an element of a.
/// Wide tiles need few loads for their multiply-adds.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t tile_rows = 2;  // the same sums; checks at every load make long code
#else
constexpr std::uint64_t tile_rows = 6;
#endif
constexpr std::uint64_t tile_vectors = lanes >= 16 ? 4 : 2;
constexpr std::uint64_t tile_columns = tile_vectors * lanes;
/// Columns of b that are packed together: 512 KiB.
constexpr std::uint64_t packed_columns = 512;

/// Apart by more than a power of two, widened rows do not share a set of the first-level cache.
constexpr std::uint64_t wide_stride = product_depth + 16;
/// Rows of a transposed a that are packed together, for several tiles: whole cache lines.
constexpr std::uint64_t packed_tiles = 8;
constexpr std::uint64_t packed_rows = packed_tiles * tile_rows;

/// Where a tile's elements of a are: row i of term k at [i * stride + k] or, by columns, at
/// [k * stride + i].
struct Operand {
  const float* data;
  std::uint64_t stride;
};

/// What happens to sums at the end of a block.
struct Target {
  float* data;
  std::uint64_t stride;
  std::uint64_t columns;  ///< of the tile that exist
  const float* bias;      ///< added when set; null: none
  bool add;               ///< to what is there, otherwise it is overwritten
};

/// Cache lines that later tiles will read and the processor does not foresee: `rows` runs of
/// `length` bytes, `stride` bytes apart. Tiles ask for them one by one between their sums: many at
/// once would wait for each other, and the sums for them.
struct Ahead {
  static constexpr std::uint64_t line = 64;
  const char* at = nullptr;
  std::uint64_t length = 0, stride = 0, rows = 0;
  std::uint64_t offset = 0;  ///< within the row

  HWY_INLINE void fetch() {
    if (rows == 0) return;
    __builtin_prefetch(at + offset, 0, 2);
    offset += line;
    if (offset < length) return;
    offset = 0;
    at += stride;
    --rows;
  }
};

template <std::uint64_t rows, std::uint64_t vectors, bool by_rows>
void tile(std::uint64_t depth, Operand a, Operand rows_of_b, const Target& c, Ahead& ahead) {
  const Wide d;
  using V = hn::Vec<Wide>;
  V sums[rows][vectors];
#pragma GCC unroll 16
  for (std::uint64_t i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (std::uint64_t v = 0; v < vectors; ++v) sums[i][v] = hn::Zero(d);
  }
  const float* HWY_RESTRICT at = a.data;
  const float* HWY_RESTRICT b = rows_of_b.data;
  const auto step = [&](const float* term) HWY_ATTR {
    V row[vectors];
#pragma GCC unroll 4
    for (std::uint64_t v = 0; v < vectors; ++v) row[v] = hn::LoadU(d, b + v * lanes);
#pragma GCC unroll 16
    for (std::uint64_t i = 0; i < rows; ++i) {
      const V x = hn::Set(d, by_rows ? term[i * a.stride] : term[i]);
#pragma GCC unroll 4
      for (std::uint64_t v = 0; v < vectors; ++v) sums[i][v] = hn::MulAdd(x, row[v], sums[i][v]);
    }
    b += rows_of_b.stride;
  };
  constexpr std::uint64_t unroll = 4;
  std::uint64_t k = 0;
  const float* sum_of_c = c.data;
  Ahead lines = ahead;
  for (; k + unroll <= depth; k += unroll) {
    if constexpr (rows == tile_rows && vectors == tile_vectors) {
      lines.fetch();
      // The sums go there when they are done: a line of c each time.
      if (const std::uint64_t i = k / unroll; i < rows * vectors) {
        __builtin_prefetch(sum_of_c + i % vectors * lanes, 1, 3);
        if (i % vectors == vectors - 1) sum_of_c += c.stride;
      }
    }
#pragma GCC unroll 4
    for (std::uint64_t j = 0; j < unroll; ++j) step(by_rows ? at + j : at + j * a.stride);
    at += by_rows ? unroll : unroll * a.stride;
  }
  for (; k < depth; ++k) {
    step(at);
    at += by_rows ? 1 : a.stride;
  }
  ahead = lines;
#pragma GCC unroll 16
  for (std::uint64_t i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (std::uint64_t v = 0; v < vectors; ++v) {
      float* out = c.data + i * c.stride + v * lanes;
      const std::uint64_t count = std::min(lanes, c.columns - v * lanes);
      V sum = sums[i][v];
      if (c.add) {
        sum = hn::Add(load_part(d, out, count), sum);
      } else if (c.bias != nullptr) {
        sum = hn::Add(sum, load_part(d, c.bias + v * lanes, count));
      }
      put_part(d, sum, out, count);
    }
  }
}

using Tile = void (*)(std::uint64_t, Operand, Operand, const Target&, Ahead&);
using TileRows = std::array<Tile, tile_vectors>;
template <std::uint64_t rows, bool by_rows, std::size_t... v>
constexpr TileRows tiles_of_rows(std::index_sequence<v...>) {
  return {&tile<rows, v + 1, by_rows>...};
}
template <bool by_rows, std::size_t... i>
constexpr std::array<TileRows, tile_rows> tiles_of(std::index_sequence<i...>) {
  return {tiles_of_rows<i + 1, by_rows>(std::make_index_sequence<tile_vectors>())...};
}
/// [by_rows][rows - 1][vectors - 1]
constexpr std::array<std::array<TileRows, tile_rows>, 2> tiles{
    tiles_of<false>(std::make_index_sequence<tile_rows>()),
    tiles_of<true>(std::make_index_sequence<tile_rows>())};

constexpr std::uint64_t panel_of_a =
    std::max(tile_rows * wide_stride + lanes, product_depth* packed_rows);

/// What one thread packs into.
struct Panels {
  alignas(64) std::array<float, product_depth * packed_columns> b;
  /// Rows of a bf16 a, or tiles of a transposed a.
  std::array<float, panel_of_a> a;
};

/// Made when a thread first multiplies: most threads never do.
Panels& panels_of_thread() {
  static thread_local std::unique_ptr<Panels> panels;
  if (panels == nullptr) panels = std::make_unique<Panels>();
  return *panels;
}

template <class T>
void pack_rows(
    float* out, const T* b, std::uint64_t ldb, std::uint64_t depth, std::uint64_t columns) {
  const Wide d;
  for (std::uint64_t k = 0; k < depth; ++k) {
    const T* row = b + k * ldb;
    float* to = out + k * tile_columns;
    for (std::uint64_t j = 0; j < columns; j += tile_columns, to += depth * tile_columns) {
#pragma GCC unroll 4
      for (std::uint64_t v = 0; v < tile_vectors; ++v) {
        const std::uint64_t at = j + v * lanes;
        const std::uint64_t count = at < columns ? std::min(columns - at, lanes) : 0;
        if (count > 0) hn::Store(load_part(d, row + at, count), d, to + v * lanes);
      }
    }
  }
}

#if HWY_TARGET <= HWY_AVX2
using Quad = hn::FixedTag<float, 4>;

/// Lane 4 g + i of the result is element i of rows[g * 4] (each row of stride ld).
template <class T>
HWY_INLINE hn::Vec<Wide> quads([[maybe_unused]] Wide d, const T* rows, std::uint64_t ld) {
  const Quad q;
#if HWY_TARGET <= HWY_AVX3
  const hn::Half<Wide> half;
  const auto low = hn::Combine(half, load(q, rows + 4 * ld), load(q, rows));
  const auto high = hn::Combine(half, load(q, rows + 12 * ld), load(q, rows + 8 * ld));
  return hn::Combine(d, high, low);
#else
  return hn::Combine(d, load(q, rows + 4 * ld), load(q, rows));
#endif
}

/// Four terms of `lanes` columns, stored as rows of b, become four vectors of out.
template <class T>
HWY_INLINE void transpose_quad(float* out, const T* b, std::uint64_t ldb) {
  const Wide d;
  const hn::Repartition<double, Wide> pairs;
  const auto v0 = quads(d, b, ldb);
  const auto v1 = quads(d, b + ldb, ldb);
  const auto v2 = quads(d, b + 2 * ldb, ldb);
  const auto v3 = quads(d, b + 3 * ldb, ldb);
  const auto a0 = hn::BitCast(pairs, hn::InterleaveLower(d, v0, v1));
  const auto a1 = hn::BitCast(pairs, hn::InterleaveUpper(d, v0, v1));
  const auto a2 = hn::BitCast(pairs, hn::InterleaveLower(d, v2, v3));
  const auto a3 = hn::BitCast(pairs, hn::InterleaveUpper(d, v2, v3));
  hn::Store(hn::BitCast(d, hn::InterleaveLower(pairs, a0, a2)), d, out);
  hn::Store(hn::BitCast(d, hn::InterleaveUpper(pairs, a0, a2)), d, out + tile_columns);
  hn::Store(hn::BitCast(d, hn::InterleaveLower(pairs, a1, a3)), d, out + 2 * tile_columns);
  hn::Store(hn::BitCast(d, hn::InterleaveUpper(pairs, a1, a3)), d, out + 3 * tile_columns);
}
#endif

template <class T>
void pack_columns(
    float* out, const T* b, std::uint64_t ldb, std::uint64_t depth, std::uint64_t columns) {
  for (std::uint64_t j = 0; j < columns; j += lanes) {
    float* to = out + j / tile_columns * tile_columns * depth + j % tile_columns;
    const T* from = b + j * ldb;
    const std::uint64_t count = std::min(lanes, columns - j);
    std::uint64_t k = 0;
#if HWY_TARGET <= HWY_AVX2
    if (count == lanes) {
      for (; k + 4 <= depth; k += 4) transpose_quad(to + k * tile_columns, from + k, ldb);
    }
#endif
    for (; k < depth; ++k) {
      for (std::uint64_t i = 0; i < count; ++i)
        to[k * tile_columns + i] = to_float(from[i * ldb + k]);
      for (std::uint64_t i = count; i < lanes; ++i) to[k * tile_columns + i] = 0;
    }
  }
}

/// Whether tiles read a packed copy of a transposed a. Where it lies, its terms are a stride apart:
/// measured on Sapphire Rapids, that costs nothing up to 6 KiB (packing costs 5 %), and from 8 KiB
/// on up to half of the speed, more at some strides than at others.
template <class T>
HWY_INLINE bool packs_transposed(const Product& p) {
  return !std::is_same_v<T, float> || p.lda >= 2048;
}

/// Packs the rows [i, i + packed_rows) of a transposed a.
template <class T>
HWY_NOINLINE void pack_transposed(float* to, const Product& p, const T* a, std::uint64_t i) {
  const Wide d;
  const std::uint64_t count = std::min(packed_rows, p.m - i);
  a += i;
  for (std::uint64_t k = 0; k < p.k; ++k, a += p.lda, to += packed_rows) {
    std::uint64_t r = 0;
    for (; r + lanes <= count; r += lanes) put(d, load(d, a + r), to + r);
    if (r < count) put(d, load_part(d, a + r, count - r), to + r);
  }
}

/// The rows [i, i + rows) of a, for one tile, as f32: where they are, or a copy. Calls go from the
/// first tile to the last.
template <class T>
HWY_INLINE Operand
rows_of_a(const Product& p, const T* a, std::uint64_t i, std::uint64_t rows, Panels& panels) {
  const Wide d;
  float* to = panels.a.data();
  if (p.a_transposed) {
    if constexpr (std::is_same_v<T, float>) {
      if (!packs_transposed<T>(p)) return {a + i, p.lda};
    }
    if (i % packed_rows == 0) pack_transposed(to, p, a, i);
    return {to + i % packed_rows, packed_rows};
  }
  a += i * p.lda;
  if constexpr (std::is_same_v<T, float>) {
    return {a, p.lda};
  } else {
    for (std::uint64_t r = 0; r < rows; ++r) {
      for (std::uint64_t k = 0; k < p.k; k += lanes) {
        put(d, load_part(d, a + r * p.lda + k, std::min(p.k - k, lanes)), to + r * wide_stride + k);
      }
    }
    return {to, wide_stride};
  }
}

/// What to ask for during the tiles of the rows at i: the rows of the next tile; of a transposed a
/// that is packed, this tile's share of the next packed rows.
template <class T>
HWY_INLINE Ahead ahead_of(const Product& p, const T* a, std::uint64_t i) {
  if (!p.a_transposed) {
    const std::uint64_t next = i + tile_rows;
    if (next >= p.m) return {};
    return {reinterpret_cast<const char*>(a + next * p.lda), p.k * sizeof(T), p.lda * sizeof(T),
            std::min(tile_rows, p.m - next)};
  }
  if (!packs_transposed<T>(p)) return {};
  const std::uint64_t within = i % packed_rows;
  const std::uint64_t next = i - within + packed_rows;
  if (next >= p.m) return {};
  const std::uint64_t first = p.k * within / packed_rows;
  const std::uint64_t last = p.k * (within + tile_rows) / packed_rows;
  return {reinterpret_cast<const char*>(a + first * p.lda + next),
          std::min(packed_rows, p.m - next) * sizeof(T), p.lda * sizeof(T), last - first};
}

/// p.n columns and p.k terms of b, one block deep.
template <class T>
void pack_block(float* out, const Product& p, const T* b) {
  if (p.b_transposed) {
    pack_columns(out, b, p.ldb, p.k, p.n);
  } else {
    pack_rows(out, b, p.ldb, p.k, p.n);
  }
}

/// sums[j] += the sum of column j of a packed block.
void add_column_sums(float* sums, const float* packed, const Product& p) {
  const Wide d;
  for (std::uint64_t j = 0; j < p.n; j += tile_columns, packed += p.k * tile_columns) {
    hn::Vec<Wide> sum[tile_vectors];
    for (auto& one : sum) one = hn::Zero(d);
    const std::uint64_t vectors = std::min(tile_vectors, (p.n - j + lanes - 1) / lanes);
    for (std::uint64_t k = 0; k < p.k; ++k) {
      for (std::uint64_t v = 0; v < vectors; ++v) {
        sum[v] = hn::Add(sum[v], hn::Load(d, packed + k * tile_columns + v * lanes));
      }
    }
    for (std::uint64_t v = 0; v < vectors; ++v) {
      const std::uint64_t at = j + v * lanes;
      const std::uint64_t count = std::min(lanes, p.n - at);
      put_part(d, hn::Add(load_part(d, sums + at, count), sum[v]), sums + at, count);
    }
  }
}

/// Where a tile finds its columns of b: column j, term k at [j * column + k * row].
struct PanelsOfB {
  const float* data;
  std::uint64_t column;
  std::uint64_t row;
};
/// Packed, `depth` terms deep.
constexpr PanelsOfB packed_panels(const float* data, std::uint64_t depth) {
  return {data, depth, tile_columns};
}

/// One block of terms. A packed b may be deeper than p.k.
template <class T>
void run_block(const Product& p,
               const T* a,
               const PanelsOfB& b,
               float* c,
               const float* bias,
               bool add,
               const MatrixPart* done) {
  Panels& panels = panels_of_thread();
  for (std::uint64_t i = 0; i < p.m; i += tile_rows) {
    const std::uint64_t rows = std::min(tile_rows, p.m - i);
    const Operand operand = rows_of_a(p, a, i, rows, panels);
    Ahead ahead = ahead_of(p, a, i);
    const TileRows& runs = tiles[p.a_transposed ? 0 : 1][rows - 1];
    for (std::uint64_t j = 0; j < p.n; j += tile_columns) {
      const std::uint64_t columns = std::min(tile_columns, p.n - j);
      runs[(columns + lanes - 1) / lanes - 1](
          p.k, operand, {b.data + j * b.column, b.row},
          {c + i * p.ldc + j, p.ldc, columns, bias == nullptr ? nullptr : bias + j, add}, ahead);
    }
    if (done != nullptr) p.rows_done(p.context, {i, rows, done->column, done->columns});
  }
}

/// Calls f(q, k) for every block of terms: q is p with the terms [k, k + q.k).
template <class F>
void each_block(const Product& p, F&& f) {
  Product q = p;
  for (std::uint64_t k = 0; k < p.k; k += product_depth) {
    q.k = std::min(product_depth, p.k - k);
    f(q, k);
  }
}

/// Few rows do not pay for packing b, and need not where it can be read as it lies.
bool reads_b_in_place(const Product& p) {
  return p.m <= 2 * tile_rows && !p.b_transposed && p.n % lanes == 0 && p.column_sums == nullptr;
}

template <class T>
void product_of(const Product& p, const T* a, const T* b, float* c, const float* bias) {
  if constexpr (std::is_same_v<T, float>) {
    if (reads_b_in_place(p)) {
      const MatrixPart all{0, 0, 0, p.n};
      each_block(p, [&](const Product& q, std::uint64_t k) {
        const bool last = p.rows_done != nullptr && k + q.k == p.k;
        run_block(q, a + (p.a_transposed ? k * p.lda : k), {b + k * p.ldb, 1, p.ldb}, c,
                  k == 0 ? bias : nullptr, p.accumulate || k > 0, last ? &all : nullptr);
      });
      return;
    }
  }
  float* packed = panels_of_thread().b.data();
  Product part = p;
  for (std::uint64_t j = 0; j < p.n; j += packed_columns) {
    part.n = std::min(packed_columns, p.n - j);
    each_block(part, [&](const Product& q, std::uint64_t k) {
      pack_block(packed, q, b + (p.b_transposed ? j * p.ldb + k : k * p.ldb + j));
      if (p.column_sums != nullptr) add_column_sums(p.column_sums + j, packed, q);
      const MatrixPart done{0, 0, j, q.n};
      const bool last = p.rows_done != nullptr && k + q.k == p.k;
      run_block(q, a + (p.a_transposed ? k * p.lda : k), packed_panels(packed, q.k), c + j,
                k == 0 && bias != nullptr ? bias + j : nullptr, p.accumulate || k > 0,
                last ? &done : nullptr);
    });
  }
}

void pack_f32(float* out, const Product& p, const float* b) {
  each_block(p, [&](const Product& q, std::uint64_t k) {
    pack_block(out + k * packed_stride(p.n), q, b + (p.b_transposed ? k : k * p.ldb));
  });
}

void product_with_packed(
    const Product& p, const float* a, const float* b, PackedShape shape, float* c) {
  each_block(p, [&](const Product& q, std::uint64_t k) {
    run_block(q, a + (p.a_transposed ? k * p.lda : k),
              packed_panels(b + k * packed_stride(shape.n), std::min(product_depth, shape.k - k)),
              c, nullptr, p.accumulate || k > 0, nullptr);
  });
}

void product_f32(const Product& p, const float* a, const float* b, float* c, const float* bias) {
  product_of(p, a, b, c, bias);
}
void product_bf16(const Product& p, const Bf16* a, const Bf16* b, float* c, const float* bias) {
  product_of(p, a, b, c, bias);
}

}  // namespace troupe::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace troupe::kernels::cpu {
HWY_EXPORT(product_f32);
HWY_EXPORT(product_bf16);
HWY_EXPORT(pack_f32);
HWY_EXPORT(product_with_packed);

namespace {

void multiply_to_f32(const Product& p, const void* a, const void* b, float* c, const float* bias) {
  if (p.in == DType::f32) {
    HWY_DYNAMIC_DISPATCH(product_f32)
    (p, static_cast<const float*>(a), static_cast<const float*>(b), c, bias);
  } else {
    HWY_DYNAMIC_DISPATCH(product_bf16)
    (p, static_cast<const Bf16*>(a), static_cast<const Bf16*>(b), c, bias);
  }
}

}  // namespace

void multiply_packed(const Product& p, const void* a, const void* b, void* c, const float* bias) {
  if (p.out == DType::f32) return multiply_to_f32(p, a, b, static_cast<float*>(c), bias);
  thread_local std::vector<float> sums;
  sums.resize(std::max(sums.size(), p.m * p.n));
  Product wide = p;
  wide.out = DType::f32;
  wide.ldc = p.n;
  // Rows are rounded, and handed on, as they are done.
  struct Rounding {
    const Product* product;
    const float* sums;
    Bf16* c;
  } rounding{&p, sums.data(), static_cast<Bf16*>(c)};
  wide.context = &rounding;
  wide.rows_done = [](const void* context, const MatrixPart& part) {
    const auto& [product, from, to] = *static_cast<const Rounding*>(context);
    for (std::uint64_t i = part.row; i < part.row + part.rows; ++i) {
      convert(to + i * product->ldc + part.column, from + i * product->n + part.column,
              part.columns);
    }
    if (product->rows_done != nullptr) product->rows_done(product->context, part);
  };
  multiply_to_f32(wide, a, b, sums.data(), bias);
}

void pack(float* out, const Product& p, const float* b) {
  HWY_DYNAMIC_DISPATCH(pack_f32)(out, p, b);
}

void multiply_with(const Product& p, const float* a, const float* b, PackedShape shape, float* c) {
  if (p.m == 0 || p.n == 0) return;
  EXPECTS(0 < p.k && p.k <= shape.k && p.n <= shape.n);
  HWY_DYNAMIC_DISPATCH(product_with_packed)(p, a, b, shape, c);
}

void multiply(const Product& p, const void* a, const void* b, void* c, const float* bias) {
  if (p.m == 0 || p.n == 0) return;
  EXPECTS(p.k > 0);
  if (p.in == DType::f32 || !has_bf16_products()) return multiply_packed(p, a, b, c, bias);
  EXPECTS(p.column_sums == nullptr);
  multiply_by_library(p, a, b, c, bias);
  if (p.rows_done != nullptr) p.rows_done(p.context, {0, p.m, 0, p.n});
}

}  // namespace troupe::kernels::cpu
#endif
