#include "kernels/random.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/element.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"
#include "tests/unit/kernels/op_cases.h"

using namespace troupe;
using namespace troupe::kernels;
using namespace troupe::test;

namespace {

std::vector<float> normals(std::uint64_t n,
                           std::uint64_t seed,
                           const std::string& name,
                           double standard_deviation = 1) {
  OwnStream own(Stream::Body::fast, 2);
  Buffers buffers(0, true);
  const Tensor out = buffers.zeros(DType::f32, {n});
  fill_normal(own.stream, out, seed, name, standard_deviation);
  return values_of(out);
}

/// Largest distance between the distribution of `x` and the standard normal one.
double kolmogorov_distance(std::vector<float> x) {
  std::sort(x.begin(), x.end());
  const auto n = static_cast<double>(x.size());
  double distance = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = 0.5 * std::erfc(-static_cast<double>(x[i]) / std::sqrt(2.0));
    const auto below = static_cast<double>(i);
    distance =
        std::max({distance, std::abs(expected - below / n), std::abs(expected - (below + 1) / n)});
  }
  return distance;
}

double moment(const std::vector<float>& x, int power) {
  double sum = 0;
  for (const float v : x) sum += std::pow(static_cast<double>(v), power);
  return sum / static_cast<double>(x.size());
}

/// What dropout makes of ones: 0 or 1 / (1 - p).
std::vector<float> mask(const DropoutKey& key,
                        double p,
                        std::uint64_t samples,
                        std::uint64_t size,
                        DType type = DType::f32,
                        Stream::Body body = Stream::Body::fast,
                        std::uint32_t threads = 2) {
  OwnStream own(body, threads);
  Buffers buffers(0, true);
  const Tensor x = buffers.zeros(type, {samples, size});
  fill(own.stream, x, 1);
  dropout(own.stream, x, x, key, p);
  return values_of(x);
}

double share_of_equal(const std::vector<float>& a, const std::vector<float>& b) {
  double equal = 0;
  for (std::size_t i = 0; i < a.size(); ++i) equal += a[i] == b[i] ? 1 : 0;
  return equal / static_cast<double>(a.size());
}

}  // namespace

TEST_CASE("Philox 4x32-10 gives the published words") {
  // kat_vectors of Random123.
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) ==
        PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  constexpr std::uint32_t ones = 0xffffffff;
  CHECK(philox4x32({ones, ones, ones, ones}, {ones, ones}) ==
        PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  // Digits of pi.
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("initial weights are normal: moments and Kolmogorov distance") {
  constexpr std::uint64_t n = 200001;
  const double root = std::sqrt(static_cast<double>(n));
  for (const std::uint64_t seed : {0ULL, 7ULL, 0xfedcba9876543210ULL})
    for (const char* name : {"transformer.wte.weight", "model.layers.11.mlp.up_proj.weight"}) {
      INFO("seed " << seed << ", " << name);
      const std::vector<float> x = normals(n, seed, name);
      // Five standard errors of each.
      CHECK(std::abs(moment(x, 1)) < 5 / root);
      CHECK(std::abs(moment(x, 2) - 1) < 5 * std::sqrt(2.0) / root);
      CHECK(std::abs(moment(x, 3)) < 5 * std::sqrt(15.0) / root);
      CHECK(std::abs(moment(x, 4) - 3) < 5 * std::sqrt(96.0) / root);
      CHECK(kolmogorov_distance(x) < 1.95 / root);  // one normal sample in a thousand exceeds it
    }
}

TEST_CASE("other seeds and names give independent numbers, a longer tensor begins like a shorter") {
  constexpr std::uint64_t n = 150000;
  const std::vector<float> x = normals(n, 7, "a");
  for (const auto& other : {normals(n, 8, "a"), normals(n, 7, "b"), normals(n, 7ULL << 32, "a")}) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * other[i];
    CHECK(std::abs(sum / n) < 5 / std::sqrt(static_cast<double>(n)));
  }
  for (const std::uint64_t shorter : {1ULL, 3ULL, 65536ULL, 65537ULL}) {
    const std::vector<float> y = normals(shorter, 7, "a");
    CHECK(std::equal(y.begin(), y.end(), x.begin()));
  }
  const std::vector<float> narrow = normals(1000, 7, "a", 0.02);
  for (std::size_t i = 0; i < narrow.size(); ++i)
    REQUIRE(narrow[i] == Approx(0.02 * static_cast<double>(x[i])).epsilon(1e-6).margin(1e-12));
}

TEST_CASE("dropout keeps its share, scales what it keeps and does nothing at 0") {
  constexpr std::uint64_t n = 300000;
  for (const double p : {0.0, 0.1, 0.5, 0.9}) {
    INFO("p " << p);
    const std::vector<float> got = mask({3, 1, 0, 0}, p, 3, n / 3);
    const auto scale = static_cast<float>(1 / (1 - p));
    double kept = 0;
    for (const float v : got) {
      REQUIRE((v == 0 || v == scale));
      kept += v != 0 ? 1 : 0;
    }
    CHECK(std::abs(kept / n - (1 - p)) <= 5 * std::sqrt(p * (1 - p) / n));
  }
}

TEST_CASE("dropout masks of another seed, step, tensor or sample are independent") {
  constexpr std::uint64_t n = 100000;
  constexpr double p = 0.3;
  const std::vector<float> one = mask({3, 1, 2, 5}, p, 1, n);
  CHECK(share_of_equal(one, mask({3, 1, 2, 5}, p, 1, n)) == 1);
  const double by_chance = p * p + (1 - p) * (1 - p);
  const double error = std::sqrt(by_chance * (1 - by_chance) / n);
  for (const DropoutKey& key :
       {DropoutKey{4, 1, 2, 5}, DropoutKey{3ULL | 1ULL << 32, 1, 2, 5}, DropoutKey{3, 2, 2, 5},
        DropoutKey{3, 1 + (1ULL << 32), 2, 5}, DropoutKey{3, 1, 3, 5}, DropoutKey{3, 1, 2, 6}})
    CHECK(std::abs(share_of_equal(one, mask(key, p, 1, n)) - by_chance) < 5 * error);
}

TEST_CASE("samples of one call have the masks that they have in calls of their own") {
  constexpr std::uint64_t size = 2 * 16384 + 1003;  // more than two shards, and a tail
  for (const DType type : {DType::f32, DType::bf16})
    for (const Stream::Body body : {Stream::Body::naive, Stream::Body::fast}) {
      INFO(to_string(type) << (body == Stream::Body::fast ? ", fast" : ", naive"));
      const std::vector<float> whole = mask({9, 4, 1, 100}, 0.2, 5, size, type, body);
      std::vector<float> pieces = mask({9, 4, 1, 100}, 0.2, 2, size, type, body, 1);
      for (const std::uint64_t first : {102U, 103U, 104U}) {
        const auto more = mask({9, 4, 1, first}, 0.2, 1, size, type, body, 3);
        pieces.insert(pieces.end(), more.begin(), more.end());
      }
      CHECK(pieces == whole);
      CHECK(mask({9, 4, 1, 100}, 0.2, 5, size, type, Stream::Body::naive) == whole);
    }
}

TEST_CASE("a shorter sample, cut into other shards, begins with the mask of a longer one") {
  const std::vector<float> longer = mask({9, 4, 1, 7}, 0.5, 1, 50000);
  for (const std::uint64_t size : {1U, 5U, 16U, 16383U, 16385U, 40001U}) {
    const std::vector<float> shorter = mask({9, 4, 1, 7}, 0.5, 1, size);
    INFO(size);
    CHECK(std::equal(shorter.begin(), shorter.end(), longer.begin()));
  }
}
