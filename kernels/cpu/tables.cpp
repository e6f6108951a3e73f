// Embedding tables and rotary positions.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/tables.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "devices/compute_pool.h"
#include "kernels/cpu/fast.h"
#include "kernels/cpu/shards.h"
#include "kernels/cpu/vector-inl.h"
#include "kernels/element.h"

HWY_BEFORE_NAMESPACE();
namespace troupe::kernels::cpu::HWY_NAMESPACE {

/// out = a (+ b).
template <class T>
void look_up_any(T* out, const float* a, const float* b, std::uint64_t n) {
  each_vector(n, [&](auto d, std::uint64_t i, std::uint64_t count) {
    auto v = load_part(d, a + i, count);
    if (b != nullptr) v = hn::Add(v, load_part(d, b + i, count));
    put_part(d, v, out + i, count);
  });
}
void look_up_f32(float* out, const float* a, const float* b, std::uint64_t n) {
  look_up_any(out, a, b, n);
}
void look_up_bf16(Bf16* out, const float* a, const float* b, std::uint64_t n) {
  look_up_any(out, a, b, n);
}

template <class T>
void accumulate_any(float* out, const T* x, std::uint64_t n) {
  each_vector(n, [&](auto d, std::uint64_t i, std::uint64_t count) {
    put_part(d, hn::Add(load_part(d, out + i, count), load_part(d, x + i, count)), out + i, count);
  });
}
void accumulate_f32(float* out, const float* x, std::uint64_t n) {
  accumulate_any(out, x, n);
}
void accumulate_bf16(float* out, const Bf16* x, std::uint64_t n) {
  accumulate_any(out, x, n);
}

/// One head: x[i], x[i + half] turned by the angle whose cosine and sine are given.
template <class T>
void rotate_any(T* x, const float* cosine, const float* sine, float sign, std::uint64_t half) {
  each_vector(half, [&](auto d, std::uint64_t i, std::uint64_t count) {
    const auto a = load_part(d, x + i, count);
    const auto b = load_part(d, x + half + i, count);
    const auto c = load_part(d, cosine + i, count);
    const auto s = hn::Mul(load_part(d, sine + i, count), hn::Set(d, sign));
    put_part(d, hn::NegMulAdd(b, s, hn::Mul(a, c)), x + i, count);
    put_part(d, hn::MulAdd(a, s, hn::Mul(b, c)), x + half + i, count);
  });
}
void rotate_f32(float* x, const float* c, const float* s, float sign, std::uint64_t half) {
  rotate_any(x, c, s, sign, half);
}
void rotate_bf16(Bf16* x, const float* c, const float* s, float sign, std::uint64_t half) {
  rotate_any(x, c, s, sign, half);
}

}  // namespace troupe::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace troupe::kernels::cpu {
namespace {

HWY_EXPORT(look_up_f32);
HWY_EXPORT(look_up_bf16);
HWY_EXPORT(accumulate_f32);
HWY_EXPORT(accumulate_bf16);
HWY_EXPORT(rotate_f32);
HWY_EXPORT(rotate_bf16);

/// Cosines and sines of positions [0, length) and every pair, each (length, half).
struct RopeTable {
  std::vector<float> cosine, sine;
};

/// Made once for each (length, head width, theta) and kept: a model has one of them. The length is
/// rounded up to a power of two, so that sequences that grow ask for few of them.
const RopeTable& rope_table(std::uint32_t positions, std::uint32_t head_width, double theta) {
  static std::mutex mutex;
  static std::map<std::tuple<std::uint64_t, std::uint32_t, double>, std::unique_ptr<RopeTable>>
      kept;
  const std::lock_guard lock(mutex);
  const std::uint64_t length = std::bit_ceil(std::uint64_t{positions});
  std::unique_ptr<RopeTable>& table = kept[{length, head_width, theta}];
  if (table != nullptr) return *table;
  const std::uint64_t half = head_width / 2;
  table = std::make_unique<RopeTable>();
  table->cosine.resize(length * half);
  table->sine.resize(length * half);
  for (std::uint64_t i = 0; i < half; ++i) {
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / head_width);
    for (std::uint64_t position = 0; position < length; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      table->cosine[position * half + i] = static_cast<float>(std::cos(angle));
      table->sine[position * half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return *table;
}

void add_to(float* out, const Tensor& x, std::uint64_t row, std::uint64_t column, std::uint64_t n) {
  if (x.dtype == DType::f32) {
    HWY_DYNAMIC_DISPATCH(accumulate_f32)(out, row_of<float>(x, row) + column, n);
  } else {
    HWY_DYNAMIC_DISPATCH(accumulate_bf16)(out, row_of<Bf16>(x, row) + column, n);
  }
}

}  // namespace

void embedding_forward(Stream& stream, const EmbeddingForward& args) {
  const std::uint64_t columns = args.out.columns();
  const std::uint64_t size = rows_per_shard(columns);
  const std::uint64_t rows = args.out.rows();
  stream.pool().run(shard_count(rows, size), [&](std::uint64_t shard, std::uint32_t) {
    for (std::uint64_t r = shard * size; r < std::min(rows, (shard + 1) * size); ++r) {
      const float* token =
          row_of<float>(args.token_table, static_cast<std::uint64_t>(args.tokens[r]));
      const float* position = present(args.position_table)
                                  ? row_of<float>(args.position_table, r % args.length)
                                  : nullptr;
      if (args.out.dtype == DType::f32) {
        HWY_DYNAMIC_DISPATCH(look_up_f32)(row_of<float>(args.out, r), token, position, columns);
      } else {
        HWY_DYNAMIC_DISPATCH(look_up_bf16)(row_of<Bf16>(args.out, r), token, position, columns);
      }
    }
  });
}

void embedding_backward(Stream& stream, const EmbeddingBackward& args) {
  // Shards are columns, so that every table element meets its tokens in their order.
  constexpr std::uint64_t size = 64;
  const std::uint64_t columns = args.dout.columns();
  stream.pool().run(shard_count(columns, size), [&](std::uint64_t shard, std::uint32_t) {
    const std::uint64_t first = shard * size;
    const std::uint64_t n = std::min(size, columns - first);
    for (std::uint64_t row = 0; row < args.dout.rows(); ++row) {
      const auto token = static_cast<std::uint64_t>(args.tokens[row]);
      add_to(row_of<float>(args.token_gradient, token) + first, args.dout, row, first, n);
      if (!present(args.position_gradient)) continue;
      add_to(row_of<float>(args.position_gradient, row % args.length) + first, args.dout, row,
             first, n);
    }
  });
}

void rope(Stream& stream, const Rope& args) {
  const std::uint64_t half = args.head_width / 2;
  const RopeTable& table = rope_table(args.first + args.length, args.head_width, args.theta);
  const float* cosine = table.cosine.data();
  const float* sine = table.sine.data();
  const float sign = args.inverse ? -1.0f : 1.0f;
  const std::uint64_t size = rows_per_shard(args.x.columns());
  const std::uint64_t rows = args.x.rows();
  stream.pool().run(shard_count(rows, size), [&](std::uint64_t shard, std::uint32_t) {
    for (std::uint64_t row = shard * size; row < std::min(rows, (shard + 1) * size); ++row) {
      const std::uint64_t at = (args.first + row % args.length) * half;
      for (std::uint64_t c = 0; c < args.x.columns(); c += args.head_width) {
        if (args.x.dtype == DType::f32) {
          HWY_DYNAMIC_DISPATCH(rotate_f32)
          (row_of<float>(args.x, row) + c, cosine + at, sine + at, sign, half);
        } else {
          HWY_DYNAMIC_DISPATCH(rotate_bf16)
          (row_of<Bf16>(args.x, row) + c, cosine + at, sine + at, sign, half);
        }
      }
    }
  });
}

}  // namespace troupe::kernels::cpu
#endif
