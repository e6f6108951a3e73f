// Addition, dropout, fills and conversions.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstring>

#include "devices/compute_pool.h"
#include "kernels/cpu/fast.h"
#include "kernels/cpu/shards.h"
#include "kernels/cpu/softmax.h"
#include "kernels/cpu/vector-inl.h"
#include "kernels/element.h"

HWY_BEFORE_NAMESPACE();
namespace troupe::kernels::cpu::HWY_NAMESPACE {

template <class T>
void add_any(T* out, const T* a, const T* b, std::uint64_t n) {
  each_vector(n, [&](auto d, std::uint64_t i, std::uint64_t count) {
    put_part(d, hn::Add(load_part(d, a + i, count), load_part(d, b + i, count)), out + i, count);
  });
}
void add_f32(float* out, const float* a, const float* b, std::uint64_t n) {
  add_any(out, a, b, n);
}
void add_bf16(Bf16* out, const Bf16* a, const Bf16* b, std::uint64_t n) {
  add_any(out, a, b, n);
}

constexpr std::uint64_t words_at_once = 4 * HWY_MAX_BYTES / 4;

#if HWY_TARGET == HWY_SCALAR

/// The words of one block.
void philox_blocks(std::uint32_t* words,
                   std::uint32_t first,
                   PhiloxCounter counter,
                   const PhiloxKey& key) {
  counter[0] = first;
  const PhiloxCounter random = philox4x32(counter, key);
  std::copy(random.begin(), random.end(), words);
}

#else

/// The high and low halves of a * b.
template <class DU, class V>
HWY_INLINE void wide_product(DU du, V a, V b, V& high, V& low) {
  const hn::Repartition<std::uint64_t, DU> wide;
  const auto upper = [&](V v) { return hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(wide, v))); };
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(upper(a), upper(b));
  high = hn::OddEven(hn::BitCast(du, odd), hn::BitCast(du, hn::ShiftRight<32>(even)));
  low = hn::OddEven(hn::BitCast(du, hn::ShiftLeft<32>(odd)), hn::BitCast(du, even));
}

/// The words of as many blocks as there are lanes, from block `first` on, in element order.
void philox_blocks(std::uint32_t* words,
                   std::uint32_t first,
                   const PhiloxCounter& counter,
                   const PhiloxKey& key) {
  const hn::ScalableTag<std::uint32_t> du;
  auto c0 = hn::Iota(du, first);
  auto c1 = hn::Set(du, counter[1]);
  auto c2 = hn::Set(du, counter[2]);
  auto c3 = hn::Set(du, counter[3]);
  auto k0 = hn::Set(du, key[0]);
  auto k1 = hn::Set(du, key[1]);
  for (int round = 0; round < 10; ++round) {
    auto high0 = c0, low0 = c0, high1 = c0, low1 = c0;
    wide_product(du, c0, hn::Set(du, 0xD2511F53u), high0, low0);
    wide_product(du, c2, hn::Set(du, 0xCD9E8D57u), high1, low1);
    c0 = hn::Xor(hn::Xor(high1, c1), k0);
    c1 = low1;
    c2 = hn::Xor(hn::Xor(high0, c3), k1);
    c3 = low0;
    k0 = hn::Add(k0, hn::Set(du, 0x9E3779B9u));
    k1 = hn::Add(k1, hn::Set(du, 0xBB67AE85u));
  }
  hn::StoreInterleaved4(c0, c1, c2, c3, du, words);
}

#endif

/// Elements [begin, end) of one sample; begin is a multiple of 4.
template <class T>
void dropout_any(T* out, const T* x, const DropoutRange& r) {
  const hn::ScalableTag<std::uint32_t> du;
  const std::uint64_t lanes = hn::Lanes(du);
  HWY_ALIGN std::uint32_t words[words_at_once];
  for (std::uint64_t i = r.begin; i < r.end; i += 4 * lanes) {
    philox_blocks(words, static_cast<std::uint32_t>(i / 4), r.counter, r.key);
    const std::uint64_t n = std::min(4 * lanes, r.end - i);
    each_vector(n, [&](auto d, std::uint64_t j, std::uint64_t count) {
      const auto word = hn::Load(du, words + j);
      const auto kept = hn::RebindMask(d, hn::Not(hn::Lt(word, hn::Set(du, r.threshold))));
      const auto scaled = hn::Mul(load_part(d, x + i + j, count), hn::Set(d, r.scale));
      put_part(d, hn::IfThenElseZero(kept, scaled), out + i + j, count);
    });
  }
}
void dropout_f32(float* out, const float* x, const DropoutRange& r) {
  dropout_any(out, x, r);
}
void dropout_bf16(Bf16* out, const Bf16* x, const DropoutRange& r) {
  dropout_any(out, x, r);
}

}  // namespace troupe::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace troupe::kernels::cpu {
namespace {

HWY_EXPORT(add_f32);
HWY_EXPORT(add_bf16);
HWY_EXPORT(dropout_f32);
HWY_EXPORT(dropout_bf16);

/// Calls f(row) over shards of rows.
template <class F>
void each_row(Stream& stream, std::uint64_t rows, std::uint64_t columns, F&& f) {
  const std::uint64_t size = rows_per_shard(columns);
  stream.pool().run(shard_count(rows, size), [&](std::uint64_t shard, std::uint32_t) {
    const std::uint64_t end = std::min(rows, (shard + 1) * size);
    for (std::uint64_t row = shard * size; row < end; ++row) f(row);
  });
}

/// Calls f(first, count) over runs of one row: all of it, or parts of long rows (dense tensors are
/// one row).
template <class F>
void each_run(Stream& stream, const Tensor& t, bool dense, F&& f) {
  constexpr std::uint64_t size = 1 << 15;
  if (dense) {
    const std::uint64_t n = t.elements();
    stream.pool().run(shard_count(n, size), [&](std::uint64_t shard, std::uint32_t) {
      f(0, shard * size, std::min(size, n - shard * size));
    });
  } else {
    each_row(stream, t.rows(), t.columns(), [&](std::uint64_t row) { f(row, 0, t.columns()); });
  }
}

}  // namespace

void add(DType type, std::byte* out, const std::byte* a, const std::byte* b, std::uint64_t n) {
  if (type == DType::f32) {
    HWY_DYNAMIC_DISPATCH(add_f32)
    (reinterpret_cast<float*>(out), reinterpret_cast<const float*>(a),
     reinterpret_cast<const float*>(b), n);
  } else {
    HWY_DYNAMIC_DISPATCH(add_bf16)
    (reinterpret_cast<Bf16*>(out), reinterpret_cast<const Bf16*>(a),
     reinterpret_cast<const Bf16*>(b), n);
  }
}

void add(Stream& stream, const Tensor& out, const Tensor& a, const Tensor& b) {
  const Bytes size = size_of(out.dtype);
  each_run(stream, out, true, [&](std::uint64_t, std::uint64_t i, std::uint64_t n) {
    add(out.dtype, out.data + i * size, a.data + i * size, b.data + i * size, n);
  });
}

void dropout(Stream& stream, const Tensor& out, const Tensor& x, const DropoutKey& key, double p) {
  const std::uint64_t samples = x.rank == 0 ? 0 : x.shape[0];
  if (samples == 0) return;
  constexpr std::uint64_t size = 1 << 14;
  const std::uint64_t per_sample = x.elements() / samples;
  const std::uint64_t parts = shard_count(per_sample, size);
  stream.pool().run(samples * parts, [&](std::uint64_t shard, std::uint32_t) {
    const std::uint64_t s = shard / parts;
    DropoutRange r;
    r.begin = shard % parts * size;
    r.end = std::min(per_sample, r.begin + size);
    r.counter = {0, static_cast<std::uint32_t>(key.first_sample + s), key.tensor,
                 static_cast<std::uint32_t>(key.step)};
    r.key = dropout_philox_key(key);
    r.threshold = dropout_threshold(p);
    r.scale = dropout_scale(p);
    const std::uint64_t at = s * per_sample;
    if (x.dtype == DType::f32) {
      HWY_DYNAMIC_DISPATCH(dropout_f32)(out.as<float>() + at, x.as<float>() + at, r);
    } else {
      HWY_DYNAMIC_DISPATCH(dropout_bf16)(out.as<Bf16>() + at, x.as<Bf16>() + at, r);
    }
  });
}

void fill(Stream& stream, const Tensor& out, float value) {
  with_float_type(out.dtype, [&](auto type) {
    store(type, value);
    each_run(stream, out, out.dense(), [&](std::uint64_t row, std::uint64_t i, std::uint64_t n) {
      std::fill_n(row_of<decltype(type)>(out, row) + i, n, type);
    });
  });
}

void copy(Stream& stream, const Tensor& out, const Tensor& x) {
  const bool dense = out.dense() && x.dense();
  each_run(stream, out, dense, [&](std::uint64_t row, std::uint64_t i, std::uint64_t n) {
    const Bytes size = size_of(x.dtype);
    if (out.dtype == x.dtype) {
      std::memcpy(out.data + (row * out.row_stride + i) * size,
                  x.data + (row * x.row_stride + i) * size, n * size);
    } else if (x.dtype == DType::f32) {
      convert(row_of<Bf16>(out, row) + i, row_of<float>(x, row) + i, n);
    } else {
      convert(row_of<float>(out, row) + i, row_of<Bf16>(x, row) + i, n);
    }
  });
}

}  // namespace troupe::kernels::cpu
#endif
