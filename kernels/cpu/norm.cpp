// LayerNorm and RMSNorm.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "devices/compute_pool.h"
#include "kernels/cpu/fast.h"
#include "kernels/cpu/shards.h"
#include "kernels/cpu/vector-inl.h"
#include "kernels/element.h"

HWY_BEFORE_NAMESPACE();
namespace troupe::kernels::cpu::HWY_NAMESPACE {

/// x = x + residual, rounded to T; returns where the sum stands.
template <class T>
const T* add_residual(const NormForward& args, std::uint64_t row) {
  const T* x = row_of<T>(args.x, row);
  if (!present(args.residual)) return x;
  const T* residual = row_of<T>(args.residual, row);
  T* sum = row_of<T>(args.sum, row);
  each_vector(args.x.columns(), [&](auto d, std::uint64_t i, std::uint64_t count) {
    put_part(d, hn::Add(load_part(d, x + i, count), load_part(d, residual + i, count)), sum + i,
             count);
  });
  return sum;
}

template <class T>
void forward_row(const NormForward& args, std::uint64_t row) {
  const std::uint64_t n = args.x.columns();
  const T* x = add_residual<T>(args, row);
  float mean = 0;
  if (args.kind == NormKind::layer) {
    mean = lane_sum(n, [&](auto d, std::uint64_t i,
                           std::uint64_t count) { return load_part(d, x + i, count); }) /
           static_cast<float>(n);
    args.mean.as<float>()[row] = mean;
  }
  const float squares = lane_sum(n, [&](auto d, std::uint64_t i, std::uint64_t count) {
    auto centred = hn::Sub(load_part(d, x + i, count), hn::Set(d, mean));
    if (count < hn::Lanes(d)) centred = hn::IfThenElseZero(hn::FirstN(d, count), centred);
    return hn::Mul(centred, centred);
  });
  const auto variance = static_cast<double>(squares) / static_cast<double>(n);
  const auto rstd = static_cast<float>(1.0 / std::sqrt(variance + args.epsilon));
  args.rstd.as<float>()[row] = rstd;
  T* out = row_of<T>(args.out, row);
  const float* gain = args.gain.as<float>();
  const float* bias = present(args.bias) ? args.bias.as<float>() : nullptr;
  each_vector(n, [&](auto d, std::uint64_t i, std::uint64_t count) {
    const auto normal =
        hn::Mul(hn::Sub(load_part(d, x + i, count), hn::Set(d, mean)), hn::Set(d, rstd));
    const auto g = load_part(d, gain + i, count);
    const auto y =
        bias == nullptr ? hn::Mul(normal, g) : hn::MulAdd(normal, g, load_part(d, bias + i, count));
    put_part(d, y, out + i, count);
  });
}

template <class T>
void backward_row(const NormBackwardInput& args, std::uint64_t row) {
  const std::uint64_t n = args.x.columns();
  const T* x = row_of<T>(args.x, row);
  const T* dy = row_of<T>(args.dy, row);
  T* dx = row_of<T>(args.dx, row);
  const float* gain = args.gain.as<float>();
  const bool layer = args.kind == NormKind::layer;
  const float mean = layer ? args.mean.as<float>()[row] : 0.0f;
  const float rstd = args.rstd.as<float>()[row];
  const auto weighted = [&](auto d, std::uint64_t i, std::uint64_t count) {
    return hn::Mul(load_part(d, dy + i, count), load_part(d, gain + i, count));
  };
  const auto normal = [&](auto d, std::uint64_t i, std::uint64_t count) {
    return hn::Mul(hn::Sub(load_part(d, x + i, count), hn::Set(d, mean)), hn::Set(d, rstd));
  };
  // Lanes beyond the row have gain 0, so that their products are 0.
  const float sum_g = layer ? lane_sum(n, weighted) : 0.0f;
  const float sum_gx = lane_sum(n, [&](auto d, std::uint64_t i, std::uint64_t count) {
    return hn::Mul(weighted(d, i, count), normal(d, i, count));
  });
  const float mean_g = sum_g / static_cast<float>(n);
  const float mean_gx = sum_gx / static_cast<float>(n);
  each_vector(n, [&](auto d, std::uint64_t i, std::uint64_t count) {
    const auto centred = hn::Sub(weighted(d, i, count), hn::Set(d, mean_g));
    const auto inner = hn::NegMulAdd(normal(d, i, count), hn::Set(d, mean_gx), centred);
    auto result = hn::Mul(inner, hn::Set(d, rstd));
    if (args.accumulate) result = hn::Add(result, load_part(d, dx + i, count));
    put_part(d, result, dx + i, count);
  });
}

/// Columns [first, first + count) of one vector over all rows: partial sums of 64 rows, added up in
/// order.
template <class T, class D>
HWY_INLINE void parameter_columns(const NormBackwardParameters& args,
                                  D d,
                                  std::uint64_t first,
                                  std::uint64_t count) {
  const float* mean = args.kind == NormKind::layer ? args.mean.as<float>() : nullptr;
  const float* rstd = args.rstd.as<float>();
  auto gain = hn::Zero(d), bias = gain;
  for (std::uint64_t begin = 0; begin < args.x.rows(); begin += 64) {
    auto part_gain = hn::Zero(d), part_bias = part_gain;
    const std::uint64_t end = std::min(args.x.rows(), begin + 64);
    for (std::uint64_t row = begin; row < end; ++row) {
      const auto dy = load_part(d, row_of<T>(args.dy, row) + first, count);
      auto x = load_part(d, row_of<T>(args.x, row) + first, count);
      if (mean != nullptr) x = hn::Sub(x, hn::Set(d, mean[row]));
      part_gain = hn::MulAdd(hn::Mul(dy, hn::Set(d, rstd[row])), x, part_gain);
      part_bias = hn::Add(part_bias, dy);
    }
    gain = hn::Add(gain, part_gain);
    bias = hn::Add(bias, part_bias);
  }
  float* dgain = args.dgain.as<float>() + first;
  put_part(d, hn::Add(load_part(d, dgain, count), gain), dgain, count);
  if (!present(args.dbias)) return;
  float* dbias = args.dbias.as<float>() + first;
  put_part(d, hn::Add(load_part(d, dbias, count), bias), dbias, count);
}

template <class T, class D>
HWY_INLINE void sum_columns(
    const Tensor& out, const Tensor& in, D d, std::uint64_t first, std::uint64_t count) {
  auto sum = hn::Zero(d);
  for (std::uint64_t begin = 0; begin < in.rows(); begin += 64) {
    auto part = hn::Zero(d);
    const std::uint64_t end = std::min(in.rows(), begin + 64);
    for (std::uint64_t row = begin; row < end; ++row) {
      part = hn::Add(part, load_part(d, row_of<T>(in, row) + first, count));
    }
    sum = hn::Add(sum, part);
  }
  float* to = out.as<float>() + first;
  put_part(d, hn::Add(load_part(d, to, count), sum), to, count);
}

/// Calls f(d, first, count) for the vectors of columns [begin, end).
template <class F>
HWY_INLINE void each_column_vector(std::uint64_t begin, std::uint64_t end, F&& f) {
  each_vector(end - begin,
              [&](auto d, std::uint64_t i, std::uint64_t count) { f(d, begin + i, count); });
}

void forward_rows(const NormForward& args, std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t row = begin; row < end; ++row) {
    if (args.x.dtype == DType::f32) {
      forward_row<float>(args, row);
    } else {
      forward_row<Bf16>(args, row);
    }
  }
}

void backward_rows(const NormBackwardInput& args, std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t row = begin; row < end; ++row) {
    if (args.x.dtype == DType::f32) {
      backward_row<float>(args, row);
    } else {
      backward_row<Bf16>(args, row);
    }
  }
}

void parameter_shard(const NormBackwardParameters& args, std::uint64_t begin, std::uint64_t end) {
  each_column_vector(begin, end, [&](auto d, std::uint64_t first, std::uint64_t count) {
    if (args.x.dtype == DType::f32) {
      parameter_columns<float>(args, d, first, count);
    } else {
      parameter_columns<Bf16>(args, d, first, count);
    }
  });
}

void column_sums(const Tensor& out, const Tensor& in, std::uint64_t begin, std::uint64_t end) {
  each_column_vector(begin, end, [&](auto d, std::uint64_t first, std::uint64_t count) {
    if (in.dtype == DType::f32) {
      sum_columns<float>(out, in, d, first, count);
    } else {
      sum_columns<Bf16>(out, in, d, first, count);
    }
  });
}

}  // namespace troupe::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace troupe::kernels::cpu {
namespace {

HWY_EXPORT(forward_rows);
HWY_EXPORT(backward_rows);
HWY_EXPORT(parameter_shard);
HWY_EXPORT(column_sums);

/// Calls f(begin, end) over shards of [0, n).
template <class F>
void each_range(Stream& stream, std::uint64_t n, std::uint64_t size, F&& f) {
  stream.pool().run(shard_count(n, size), [&](std::uint64_t shard, std::uint32_t) {
    f(shard * size, std::min(n, (shard + 1) * size));
  });
}

}  // namespace

void norm_forward(Stream& stream, const NormForward& args) {
  const std::uint64_t size = rows_per_shard(args.x.columns());
  each_range(stream, args.x.rows(), size, [&](std::uint64_t begin, std::uint64_t end) {
    HWY_DYNAMIC_DISPATCH(forward_rows)(args, begin, end);
  });
}

void norm_backward_input(Stream& stream, const NormBackwardInput& args) {
  const std::uint64_t size = rows_per_shard(args.x.columns());
  each_range(stream, args.x.rows(), size, [&](std::uint64_t begin, std::uint64_t end) {
    HWY_DYNAMIC_DISPATCH(backward_rows)(args, begin, end);
  });
}

void norm_backward_parameters(Stream& stream, const NormBackwardParameters& args) {
  each_range(stream, args.x.columns(), 64, [&](std::uint64_t begin, std::uint64_t end) {
    HWY_DYNAMIC_DISPATCH(parameter_shard)(args, begin, end);
  });
}

void bias_gradient(Stream& stream, const Tensor& out, const Tensor& in) {
  each_range(stream, in.columns(), 64, [&](std::uint64_t begin, std::uint64_t end) {
    HWY_DYNAMIC_DISPATCH(column_sums)(out, in, begin, end);
  });
}

}  // namespace troupe::kernels::cpu
#endif
