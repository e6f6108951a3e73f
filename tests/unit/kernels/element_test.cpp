#include "tests/unit/kernels/targets.h"

// Apart: the line above wants to be the first.
#include "kernels/element.h"

#include <cmath>
#include <vector>

#include "kernels/elementwise.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"
#include "tests/unit/kernels/op_cases.h"

using namespace troupe;
using namespace troupe::kernels;
using namespace troupe::test;

namespace {

/// The magnitude of a bf16; what would be infinity counts as the next power of two.
double magnitude(std::uint32_t bits) {
  if (bits == 0x7f80) return 0x1p128;
  return std::abs(static_cast<double>(std::bit_cast<float>(bits << 16)));
}

/// By definition: the nearer neighbour, of two equally near the even one.
std::uint16_t nearest_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t below = bits >> 16 & 0x7fffu;
  if (std::isinf(x)) return static_cast<std::uint16_t>(sign | below);
  const double from_below = std::abs(static_cast<double>(x)) - magnitude(below);
  const double from_above = magnitude(below + 1) - std::abs(static_cast<double>(x));
  const bool up = from_above < from_below || (from_above == from_below && below % 2 == 1);
  return static_cast<std::uint16_t>(sign | (up ? below + 1 : below));
}

bool is_right(float x, std::uint16_t got) {
  if (std::isnan(x)) return std::isnan(to_float(Bf16{got})) && (got >> 15 == 1) == std::signbit(x);
  return got == nearest_bf16(x);
}

/// Every upper half with lower halves around the ties: all exponents, subnormal numbers,
/// infinities and NaN of both signs.
std::vector<float> floats() {
  std::vector<float> list;
  for (std::uint32_t upper = 0; upper < 65536; ++upper)
    for (const std::uint32_t lower : {0x0u, 0x1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      list.push_back(std::bit_cast<float>(upper << 16 | lower));
  return list;
}

Tensor tensor_of(std::vector<float>& data) {
  return make_tensor(reinterpret_cast<std::byte*>(data.data()), DType::f32, {data.size()});
}

}  // namespace

TEST_CASE("f32 to bf16 rounds to nearest even: ties, subnormal numbers, overflow, NaN") {
  CHECK(to_bf16(1.00390625f).bits == 0x3f80);                        // 1 + 2^-8: tie, down to even
  CHECK(to_bf16(1.01171875f).bits == 0x3f82);                        // 1 + 3 2^-8: tie, up to even
  CHECK(to_bf16(std::bit_cast<float>(0x7f7fffffu)).bits == 0x7f80);  // the largest: infinity
  CHECK(to_bf16(std::bit_cast<float>(0x00000001u)).bits == 0);       // the smallest: zero
  CHECK(to_bf16(-0.0f).bits == 0x8000);
  CHECK(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7f800001u)))));  // not infinity
  std::uint64_t wrong = 0;
  for (const float x : floats()) wrong += is_right(x, to_bf16(x).bits) ? 0 : 1;
  CHECK(wrong == 0);
}

TEST_CASE("copies round and widen alike on every body and instruction set") {
  std::vector<float> list = floats();
  list.resize(list.size() - 3);  // a tail
  const Tensor x = tensor_of(list);
  const auto check = [&](Stream& stream) {
    Buffers buffers(0, true);
    const Tensor narrow = buffers.zeros(DType::bf16, {list.size()});
    copy(stream, narrow, x);
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < list.size(); ++i)
      wrong += is_right(list[i], narrow.as<Bf16>()[i].bits) ? 0 : 1;
    CHECK(wrong == 0);

    const Tensor all = buffers.zeros(DType::bf16, {65536});
    for (std::uint32_t i = 0; i < 65536; ++i)
      all.as<Bf16>()[i].bits = static_cast<std::uint16_t>(i);
    const Tensor wide = buffers.zeros(DType::f32, {65536});
    copy(stream, wide, all);
    for (std::uint32_t i = 0; i < 65536; ++i)
      wrong += wide.as<std::uint32_t>()[i] == i << 16 ? 0 : 1;
    CHECK(wrong == 0);
  };
  OwnStream naive(Stream::Body::naive);
  check(naive.stream);
  for (const VectorTarget& target : vector_targets()) {
    INFO(target.name);
    const OnlyTarget only(target);
    OwnStream fast(Stream::Body::fast, 2);
    check(fast.stream);
  }
}
