#include "kernels/update.h"

#include <cmath>
#include <limits>

#include "kernels/element.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"
#include "tests/unit/kernels/op_cases.h"

using namespace troupe;
using namespace troupe::kernels;
using namespace troupe::test;

namespace {

constexpr float infinite = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint64_t sizes[] = {1, 15, 16, 17, 4097, 100003};

}  // namespace

TEST_CASE("a sum of squares is finite exactly when every element is") {
  for (const auto body : {Stream::Body::naive, Stream::Body::fast})
    for (const std::uint64_t n : sizes) {
      OwnStream own(body, 2);
      Buffers buffers(n, true);
      const Tensor x = buffers.normal(DType::f32, {n});
      const double clean = sum_of_squares(own.stream, x);
      CHECK(std::isfinite(clean));
      for (const std::uint64_t at : {std::uint64_t{0}, n / 2, n - 1}) {
        INFO((body == Stream::Body::fast ? "fast" : "naive") << ", " << at << " of " << n);
        float& element = x.as<float>()[at];
        const float kept = element;
        element = not_a_number;
        CHECK(std::isnan(sum_of_squares(own.stream, x)));
        for (const float v : {infinite, -infinite}) {
          element = v;
          CHECK(sum_of_squares(own.stream, x) == std::numeric_limits<double>::infinity());
        }
        element = kept;
      }
      CHECK(sum_of_squares(own.stream, x) == clean);
    }
}

TEST_CASE("a sum of squares neither overflows nor loses the smallest numbers") {
  for (const auto body : {Stream::Body::naive, Stream::Body::fast})
    for (const std::uint64_t n : sizes) {
      OwnStream own(body, 2);
      Buffers buffers(n, true);
      const Tensor x = buffers.zeros(DType::f32, {n});
      const auto count = static_cast<double>(n);
      CHECK(sum_of_squares(own.stream, x) == 0);
      fill(own.stream, x, std::numeric_limits<float>::max());
      CHECK(sum_of_squares(own.stream, x) ==
            Approx(count * std::pow(double{std::numeric_limits<float>::max()}, 2)));
      // A power of two, so that the sum is exact. Subnormal numbers count as 0.
      fill(own.stream, x, std::numeric_limits<float>::min());
      CHECK(sum_of_squares(own.stream, x) == count * 0x1p-252);
    }
}

TEST_CASE("one AdamW step by hand") {
  for (const auto body : {Stream::Body::naive, Stream::Body::fast}) {
    OwnStream own(body);
    Buffers buffers(0, true);
    AdamW args;
    args.weight = buffers.zeros(DType::f32, {3});
    args.first_moment = buffers.zeros(DType::f32, {3});
    args.second_moment = buffers.zeros(DType::f32, {3});
    args.gradient = buffers.zeros(DType::f32, {3});
    fill(own.stream, args.weight, 1);
    fill(own.stream, args.gradient, 2);
    args.learning_rate = 0.1;
    args.weight_decay = 0.01;
    args.gradient_scale = 0.25;
    adamw(own.stream, args);
    // g = 0.5. Corrected, the moments are g and g^2, so the step is the learning rate.
    for (const float m : values_of(args.first_moment)) CHECK(m == Approx(0.1 * 0.5));
    for (const float v : values_of(args.second_moment)) CHECK(v == Approx(0.001 * 0.25));
    for (const float w : values_of(args.weight)) CHECK(w == Approx(1 - 0.1 * 0.01 - 0.1));
  }
}

TEST_CASE("AdamW's bf16 copy is the f32 weight, rounded") {
  for (const auto body : {Stream::Body::naive, Stream::Body::fast})
    for (const std::uint64_t n : sizes) {
      INFO((body == Stream::Body::fast ? "fast" : "naive") << ", " << n << " elements");
      OwnStream own(body, 2);
      Buffers buffers(n, true);
      AdamW args;
      args.weight = buffers.normal(DType::f32, {n});
      args.first_moment = buffers.zeros(DType::f32, {n});
      args.second_moment = buffers.zeros(DType::f32, {n});
      args.weight_bf16 = buffers.zeros(DType::bf16, {n});
      args.learning_rate = 0.01;
      args.weight_decay = 0.1;
      for (args.step = 1; args.step <= 3; ++args.step) {
        args.gradient = buffers.normal(DType::f32, {n});
        // Numbers at the ends of the range must not go astray either.
        if (args.step == 3 && n > 3) {
          args.gradient.as<float>()[1] = infinite;
          args.weight.as<float>()[2] = std::numeric_limits<float>::max();
          args.weight.as<float>()[n - 1] = std::numeric_limits<float>::denorm_min();
        }
        adamw(own.stream, args);
        std::uint64_t wrong = 0;
        for (std::uint64_t i = 0; i < n; ++i)
          if (args.weight_bf16.as<Bf16>()[i].bits != to_bf16(args.weight.as<float>()[i]).bits)
            ++wrong;
        CHECK(wrong == 0);
      }
      if (n > 3) CHECK(std::isnan(args.weight.as<float>()[1]));
    }
}

TEST_CASE("a hash sees every byte, the order of pieces and the seed") {
  OwnStream fast(Stream::Body::fast, 2);
  OwnStream naive(Stream::Body::naive);
  Buffers buffers(5, true);
  for (const std::uint64_t n : {1ULL, 262144ULL, 262145ULL, 600001ULL}) {  // pieces of 1 MiB
    INFO(n);
    const Tensor x = buffers.normal(DType::f32, {n});
    const std::uint64_t hash = hash_bytes(fast.stream, x);
    CHECK(hash_bytes(naive.stream, x) == hash);
    CHECK(hash_bytes(fast.stream, x, 1) != hash);
    for (const std::uint64_t at : {std::uint64_t{0}, n / 2, n - 1}) {
      x.as<std::uint32_t>()[at] ^= 1;
      CHECK(hash_bytes(fast.stream, x) != hash);
      x.as<std::uint32_t>()[at] ^= 1;
    }
  }
}
