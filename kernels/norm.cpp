#include "kernels/norm.h"

#include <cmath>

#include "kernels/cpu/fast.h"
#include "kernels/element.h"

namespace troupe::kernels {
namespace {

template <class T>
void naive_forward(const NormForward& args) {
  const std::uint64_t columns = args.x.columns();
  for (std::uint64_t row = 0; row < args.x.rows(); ++row) {
    const T* x = row_of<T>(args.x, row);
    if (present(args.residual)) {
      const T* residual = row_of<T>(args.residual, row);
      T* sum = row_of<T>(args.sum, row);
      for (std::uint64_t i = 0; i < columns; ++i) {
        store(sum[i], to_float(x[i]) + to_float(residual[i]));
      }
      x = sum;
    }
    double mean = 0;
    if (args.kind == NormKind::layer) {
      for (std::uint64_t i = 0; i < columns; ++i) mean += static_cast<double>(to_float(x[i]));
      mean /= static_cast<double>(columns);
      args.mean.as<float>()[row] = static_cast<float>(mean);
    }
    double variance = 0;
    for (std::uint64_t i = 0; i < columns; ++i) {
      const double d = static_cast<double>(to_float(x[i])) - mean;
      variance += d * d;
    }
    variance /= static_cast<double>(columns);
    const double rstd = 1.0 / std::sqrt(variance + args.epsilon);
    args.rstd.as<float>()[row] = static_cast<float>(rstd);
    T* out = row_of<T>(args.out, row);
    for (std::uint64_t i = 0; i < columns; ++i) {
      double y = (static_cast<double>(to_float(x[i])) - mean) * rstd *
                 static_cast<double>(args.gain.as<float>()[i]);
      if (present(args.bias)) y += static_cast<double>(args.bias.as<float>()[i]);
      store(out[i], static_cast<float>(y));
    }
  }
}

template <class T>
void naive_backward_input(const NormBackwardInput& args) {
  const std::uint64_t columns = args.x.columns();
  const float* gain = args.gain.as<float>();
  for (std::uint64_t row = 0; row < args.x.rows(); ++row) {
    const T* x = row_of<T>(args.x, row);
    const T* dy = row_of<T>(args.dy, row);
    T* dx = row_of<T>(args.dx, row);
    const bool layer = args.kind == NormKind::layer;
    const double mean = layer ? static_cast<double>(args.mean.as<float>()[row]) : 0.0;
    const auto rstd = static_cast<double>(args.rstd.as<float>()[row]);
    double sum_g = 0;   // sum of g = dy * gain
    double sum_gx = 0;  // sum of g * normalised x
    for (std::uint64_t i = 0; i < columns; ++i) {
      const double g = static_cast<double>(to_float(dy[i])) * static_cast<double>(gain[i]);
      sum_g += g;
      sum_gx += g * (static_cast<double>(to_float(x[i])) - mean) * rstd;
    }
    const double mean_g = layer ? sum_g / static_cast<double>(columns) : 0.0;
    const double mean_gx = sum_gx / static_cast<double>(columns);
    for (std::uint64_t i = 0; i < columns; ++i) {
      const double g = static_cast<double>(to_float(dy[i])) * static_cast<double>(gain[i]);
      const double normal = (static_cast<double>(to_float(x[i])) - mean) * rstd;
      double d = rstd * (g - mean_g - normal * mean_gx);
      if (args.accumulate) d += static_cast<double>(to_float(dx[i]));
      store(dx[i], static_cast<float>(d));
    }
  }
}

template <class T>
void naive_backward_parameters(const NormBackwardParameters& args) {
  const bool layer = args.kind == NormKind::layer;
  for (std::uint64_t i = 0; i < args.x.columns(); ++i) {
    double gain = 0;
    double bias = 0;
    for (std::uint64_t row = 0; row < args.x.rows(); ++row) {
      const auto dy = static_cast<double>(to_float(row_of<T>(args.dy, row)[i]));
      const double mean = layer ? static_cast<double>(args.mean.as<float>()[row]) : 0.0;
      const auto rstd = static_cast<double>(args.rstd.as<float>()[row]);
      gain += dy * (static_cast<double>(to_float(row_of<T>(args.x, row)[i])) - mean) * rstd;
      bias += dy;
    }
    args.dgain.as<float>()[i] += static_cast<float>(gain);
    if (present(args.dbias)) args.dbias.as<float>()[i] += static_cast<float>(bias);
  }
}

void check_statistics(NormKind kind, const Tensor& x, const Tensor& mean, const Tensor& rstd) {
  EXPECTS(is_float(x) && is_vector(rstd, x.rows()));
  EXPECTS(kind == NormKind::rms || is_vector(mean, x.rows()));
}

}  // namespace

void norm_forward(Stream& stream, const NormForward& args) {
  check_statistics(args.kind, args.x, args.mean, args.rstd);
  EXPECTS(same_matrix(args.out, args.x) && is_vector(args.gain, args.x.columns()));
  EXPECTS((args.kind == NormKind::layer) == present(args.bias));
  EXPECTS(!present(args.residual) ||
          (same_matrix(args.residual, args.x) && same_matrix(args.sum, args.x)));
  const auto n = static_cast<double>(args.x.elements());
  const OpCost cost{0, (present(args.residual) ? 8 : 7) * n,
                    args.x.bytes() * (present(args.residual) ? 4 : 2) + args.rstd.bytes() * 2};
  if (counted(stream, cost)) return;
  if (stream.body() == Stream::Body::fast) return cpu::norm_forward(stream, args);
  with_float_type(args.x.dtype, [&](auto type) { naive_forward<decltype(type)>(args); });
}

void norm_backward_input(Stream& stream, const NormBackwardInput& args) {
  check_statistics(args.kind, args.x, args.mean, args.rstd);
  EXPECTS(same_matrix(args.dx, args.x) && same_matrix(args.dy, args.x));
  EXPECTS(is_vector(args.gain, args.x.columns()));
  const OpCost cost{0, 11 * static_cast<double>(args.x.elements()),
                    args.x.bytes() * (args.accumulate ? 4 : 3) + args.rstd.bytes() * 2};
  if (counted(stream, cost)) return;
  if (stream.body() == Stream::Body::fast) return cpu::norm_backward_input(stream, args);
  with_float_type(args.x.dtype, [&](auto type) { naive_backward_input<decltype(type)>(args); });
}

void norm_backward_parameters(Stream& stream, const NormBackwardParameters& args) {
  check_statistics(args.kind, args.x, args.mean, args.rstd);
  EXPECTS(same_matrix(args.dy, args.x) && is_vector(args.dgain, args.x.columns()));
  EXPECTS(!present(args.dbias) || is_vector(args.dbias, args.x.columns()));
  const OpCost cost{0, 5 * static_cast<double>(args.x.elements()),
                    args.x.bytes() * 2 + args.dgain.bytes() * 4 + args.rstd.bytes() * 2};
  if (counted(stream, cost)) return;
  if (stream.body() == Stream::Body::fast) return cpu::norm_backward_parameters(stream, args);
  with_float_type(args.x.dtype,
                  [&](auto type) { naive_backward_parameters<decltype(type)>(args); });
}

}  // namespace troupe::kernels
