// A run has the same bits on any of the vector instruction sets that fuse products and sums.
#include "tests/unit/kernels/targets.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "kernels/cpu/product.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"
#include "tests/unit/kernels/op_cases.h"

using namespace troupe;
using namespace troupe::test;

namespace {

/// Ops that multiply in bf16 where the library does that: its sums may depend on the instruction
/// set. Names of ops tell their type.
bool by_library(std::string_view name) {
  if (!kernels::cpu::has_bf16_products()) return false;
  if (name.find("bf16") == std::string_view::npos) return false;
  for (const std::string_view op : {"matmul", "head"})
    if (name.substr(0, op.size()) == op) return true;
  return false;
}

struct Bits {
  std::vector<std::vector<std::byte>> tensors;
  std::vector<double> numbers;
  friend bool operator==(const Bits&, const Bits&) = default;
};

Bits bits_of(const OpCase& op) {
  OwnStream own(Stream::Body::fast, 2);
  Buffers buffers(std::hash<std::string>()(op.name), true);
  const Outcome outcome = op.run(own.stream, buffers);
  Bits bits;
  for (const Tensor& tensor : outcome.tensors) bits.tensors.push_back(bytes_of(tensor));
  bits.numbers = outcome.numbers;
  return bits;
}

}  // namespace

TEST_CASE("ops have the same bits on every fusing instruction set") {
  std::vector<VectorTarget> fusing;
  for (const VectorTarget& target : vector_targets())
    if (target.fused) fusing.push_back(target);
  if (fusing.size() < 2) {
    WARN("skipped: this processor has fewer than two of AVX2 and AVX-512");
    return;
  }
  std::size_t compared = 0;
  for (const OpCase& op : op_cases()) {
    if (by_library(op.name)) continue;
    Bits first;
    for (const VectorTarget& target : fusing) {
      const OnlyTarget only(target);
      const Bits bits = bits_of(op);
      if (target.bit == fusing.front().bit) first = bits;
      INFO(op.name << ": " << target.name << " against " << fusing.front().name);
      CHECK(bits == first);
    }
    ++compared;
  }
  CHECK(compared > 300);
}

TEST_CASE("every fast op agrees with its definition on every instruction set") {
  for (const VectorTarget& target : vector_targets()) {
    const OnlyTarget only(target);
    for (const OpCase& op : op_cases()) {
      INFO(op.name << " on " << target.name);
      OwnStream naive(Stream::Body::naive), fast(Stream::Body::fast, 2);
      const auto seed = std::hash<std::string>()(op.name);
      Buffers for_naive(seed, true), for_fast(seed, true);
      const Outcome expected = op.run(naive.stream, for_naive);
      const Outcome got = op.run(fast.stream, for_fast);
      REQUIRE(expected.tensors.size() == got.tensors.size());
      for (std::size_t i = 0; i < got.tensors.size(); ++i) {
        INFO("tensor " << i);
        CHECK(error_of(values_of(expected.tensors[i]), values_of(got.tensors[i])) <= op.tolerance);
      }
      for (std::size_t i = 0; i < got.numbers.size(); ++i)
        CHECK(got.numbers[i] == Approx(expected.numbers[i]).epsilon(std::max(op.tolerance, 1e-14)));
    }
  }
}
