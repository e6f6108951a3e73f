#include <algorithm>
#include <cmath>

#include "devices/compute_pool.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"
#include "tests/unit/kernels/op_cases.h"

using namespace troupe;
using namespace troupe::test;

namespace {

std::uint64_t seed_of(const OpCase& op) {
  return std::hash<std::string>()(op.name);
}

}  // namespace

TEST_CASE("every fast op agrees with its definition") {
  ComputePool pool(2);
  for (const OpCase& op : op_cases()) {
    INFO(op.name << ", seed " << seed_of(op));
    Buffers for_naive(seed_of(op), true), for_fast(seed_of(op), true);
    Stream naive(Stream::Body::naive, &pool), fast(Stream::Body::fast, &pool);
    const Outcome expected = op.run(naive, for_naive);
    const Outcome got = op.run(fast, for_fast);
    REQUIRE(expected.tensors.size() == got.tensors.size());
    for (std::size_t i = 0; i < got.tensors.size(); ++i) {
      INFO("tensor " << i);
      CHECK(error_of(values_of(expected.tensors[i]), values_of(got.tensors[i])) <= op.tolerance);
    }
    for (std::size_t i = 0; i < got.numbers.size(); ++i) {
      CHECK(got.numbers[i] == Approx(expected.numbers[i]).epsilon(std::max(op.tolerance, 1e-14)));
    }
  }
}

TEST_CASE("every op gives the same bits with one, two and three threads, and again") {
  for (const OpCase& op : op_cases()) {
    INFO(op.name << ", seed " << seed_of(op));
    std::vector<std::vector<std::byte>> first;
    std::vector<double> first_numbers;
    for (const std::uint32_t threads : {1u, 2u, 3u, 1u}) {
      ComputePool pool(threads);
      Stream fast(Stream::Body::fast, &pool);
      Buffers buffers(seed_of(op), true);
      const Outcome outcome = op.run(fast, buffers);
      std::vector<std::vector<std::byte>> bytes;
      for (const Tensor& t : outcome.tensors) bytes.push_back(bytes_of(t));
      if (first.empty() && first_numbers.empty()) {
        first = bytes;
        first_numbers = outcome.numbers;
      }
      INFO(threads << " threads");
      CHECK(bytes == first);
      CHECK(outcome.numbers == first_numbers);
    }
  }
}

TEST_CASE("every op is counted on meta, and touches no memory") {
  for (const OpCase& op : op_cases()) {
    INFO(op.name);
    Stream meta(Stream::Body::meta, nullptr);
    Buffers nothing(1, false);
    (void)op.run(meta, nothing);
    CHECK(meta.count().launches >= 1);
    CHECK(meta.count().bytes_moved > 0);
  }
}

TEST_CASE("matmul counts two flops for each multiply-add") {
  Stream meta(Stream::Body::meta, nullptr);
  Buffers b(1, false);
  kernels::Matmul args;
  args.a = b.zeros(DType::f32, {3, 5});
  args.b = b.zeros(DType::f32, {5, 7});
  args.out = b.zeros(DType::f32, {3, 7});
  kernels::matmul(meta, args);
  CHECK(meta.count().matmul_flops == 2.0 * 3 * 5 * 7);
  CHECK(meta.count().bytes_moved == 4 * (3 * 5 + 5 * 7 + 3 * 7));
}

TEST_CASE("a transposed matrix has the same product wherever its rows lie") {
  using namespace kernels;
  OwnStream own(Stream::Body::fast, 2);
  constexpr std::uint64_t m = 101, n = 70, k = 520;
  std::vector<std::vector<std::byte>> products;
  for (const std::uint64_t stride : {m, m + 11, std::uint64_t{2048}, std::uint64_t{3072}}) {
    Buffers buffers(7, true);
    Matmul args;
    args.form = MatmulForm::tn;
    const Tensor values = buffers.normal(DType::f32, {k, m});
    args.b = buffers.normal(DType::f32, {k, n});
    args.a = buffers.zeros(DType::f32, {k, m}, stride - m);
    kernels::copy(own.stream, args.a, values);
    args.out = buffers.zeros(DType::f32, {m, n});
    matmul(own.stream, args);
    products.push_back(bytes_of(args.out));
    INFO("stride " << stride);
    CHECK(products.back() == products.front());
  }
}
