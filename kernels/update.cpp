#include "kernels/update.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "devices/compute_pool.h"
#include "kernels/cpu/fast.h"
#include "kernels/element.h"

namespace troupe::kernels {
namespace {

constexpr Bytes hash_piece = 1_MiB;
constexpr std::uint64_t pieces_at_once = 256;

void naive_adamw(const AdamW& args) {
  const AdamWFactors f = adamw_factors(args);
  float* w = args.weight.as<float>();
  float* m = args.first_moment.as<float>();
  float* v = args.second_moment.as<float>();
  const float* gradient = args.gradient.as<float>();
  for (std::uint64_t i = 0; i < args.weight.elements(); ++i) {
    const float g = gradient[i] * f.gradient_scale;
    m[i] = f.beta1 * m[i] + f.one_minus_beta1 * g;
    v[i] = f.beta2 * v[i] + f.one_minus_beta2 * (g * g);
    const float decayed = w[i] * f.keep;
    w[i] = decayed - f.step_size * m[i] / (std::sqrt(v[i]) * f.inverse_root2 + f.epsilon);
    if (present(args.weight_bf16)) args.weight_bf16.as<Bf16>()[i] = to_bf16(w[i]);
  }
}

}  // namespace

AdamWFactors adamw_factors(const AdamW& args) {
  const auto step = static_cast<double>(args.step);
  const double correction1 = 1 - std::pow(args.beta1, step);
  const double correction2 = 1 - std::pow(args.beta2, step);
  AdamWFactors f;
  f.gradient_scale = static_cast<float>(args.gradient_scale);
  f.beta1 = static_cast<float>(args.beta1);
  f.one_minus_beta1 = static_cast<float>(1 - args.beta1);
  f.beta2 = static_cast<float>(args.beta2);
  f.one_minus_beta2 = static_cast<float>(1 - args.beta2);
  f.keep = static_cast<float>(1 - args.learning_rate * args.weight_decay);
  f.step_size = static_cast<float>(args.learning_rate / correction1);
  f.inverse_root2 = static_cast<float>(1 / std::sqrt(correction2));
  f.epsilon = static_cast<float>(args.epsilon);
  return f;
}

double sum_of_squares(Stream& stream, Tensor x) {
  EXPECTS(x.dtype == DType::f32 && x.dense());
  if (counted(stream, {0, 2 * static_cast<double>(x.elements()), x.bytes()})) return 0;
  if (stream.body() == Stream::Body::fast) return cpu::sum_of_squares(stream, x);
  double sum = 0;
  for (std::uint64_t i = 0; i < x.elements(); ++i) {
    const auto value = static_cast<double>(x.as<float>()[i]);
    sum += value * value;
  }
  return sum;
}

void adamw(Stream& stream, const AdamW& args) {
  const std::uint64_t n = args.weight.elements();
  EXPECTS(is_vector(args.weight, n) && is_vector(args.gradient, n));
  EXPECTS(is_vector(args.first_moment, n) && is_vector(args.second_moment, n));
  EXPECTS(!present(args.weight_bf16) ||
          (args.weight_bf16.dtype == DType::bf16 && args.weight_bf16.elements() == n &&
           args.weight_bf16.dense()));
  EXPECTS(args.step >= 1);
  const OpCost cost{0, 14 * static_cast<double>(n),
                    n * (present(args.weight_bf16) ? Bytes{30} : Bytes{28})};
  if (counted(stream, cost)) return;
  if (stream.body() == Stream::Body::fast) return cpu::adamw(stream, args);
  naive_adamw(args);
}

std::uint64_t hash_bytes(Stream& stream, Tensor x, std::uint64_t seed) {
  EXPECTS(x.dense());
  if (counted(stream, {0, 0, x.bytes()})) return 0;
  const Bytes size = x.bytes();
  const std::uint64_t pieces = (size + hash_piece - 1) / hash_piece;
  std::array<XXH64_hash_t, pieces_at_once> hashes;
  std::uint64_t result = seed;
  for (std::uint64_t first = 0; first < pieces; first += pieces_at_once) {
    const std::uint64_t count = std::min(pieces_at_once, pieces - first);
    const auto piece = [&](std::uint64_t i, std::uint32_t) {
      const Bytes begin = (first + i) * hash_piece;
      hashes[i] = XXH3_64bits(x.data + begin, std::min(hash_piece, size - begin));
    };
    if (stream.body() == Stream::Body::fast) {
      stream.pool().run(count, piece);
    } else {
      for (std::uint64_t i = 0; i < count; ++i) piece(i, 0);
    }
    result = XXH3_64bits_withSeed(hashes.data(), count * sizeof(hashes[0]), result);
  }
  return result;
}

}  // namespace troupe::kernels
