#include "devices/compute_pool.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tests/support/catch.h"

using namespace troupe;

TEST_CASE("a pool runs every shard once, and returns when all are done") {
  for (const std::uint32_t threads : {1u, 2u, 3u, 5u}) {
    ComputePool pool(threads);
    CHECK(pool.threads() == threads);
    std::mt19937 random(threads);
    for (int round = 0; round < 300; ++round) {
      const std::uint64_t shards = random() % 40;
      std::vector<int> ran(shards, 0);  // no atomics: a shard belongs to one thread
      std::atomic<bool> thread_in_range{true};
      pool.run(shards, [&](std::uint64_t shard, std::uint32_t thread) {
        ++ran[shard];
        if (thread >= threads) thread_in_range = false;
      });
      REQUIRE(std::accumulate(ran.begin(), ran.end(), 0) == static_cast<int>(shards));
      REQUIRE(std::all_of(ran.begin(), ran.end(), [](int n) { return n == 1; }));
      REQUIRE(thread_in_range);
    }
  }
}

TEST_CASE("what one round writes the next round reads, on whatever thread") {
  ComputePool pool(3);
  std::vector<std::uint64_t> values(64, 1);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::uint64_t> next(values.size());
    pool.run(values.size(), [&](std::uint64_t i, std::uint32_t) {
      next[i] = values[i] + values[(i + 1) % values.size()];
    });
    values = next;
  }
  // Every element doubles each round; 200 doublings of 1 wrap to 0 in 64 bits.
  for (const std::uint64_t v : values) CHECK(v == 0);
}

TEST_CASE("no two threads of a round share a thread number") {
  ComputePool pool(4);
  for (int round = 0; round < 50; ++round) {
    std::array<std::atomic<int>, 4> inside{};
    std::atomic<bool> shared{false};
    pool.run(64, [&](std::uint64_t, std::uint32_t thread) {
      if (inside[thread].fetch_add(1) != 0) shared = true;
      inside[thread].fetch_sub(1);
    });
    REQUIRE_FALSE(shared);
  }
}

TEST_CASE("pools start and stop without having run, and after sleeping") {
  for (int i = 0; i < 20; ++i) {
    ComputePool pool(3);
    if (i % 2 == 0) continue;
    std::atomic<int> count{0};
    pool.run(5, [&](std::uint64_t, std::uint32_t) { ++count; });
    CHECK(count == 5);
  }
}

TEST_CASE("threads are pinned where asked, and run where that is refused") {
  std::atomic<int> count{0};
  ComputePool pool(3, {0, 1 << 20});  // the second core does not exist
  pool.run(30, [&](std::uint64_t, std::uint32_t) { ++count; });
  CHECK(count == 30);
}

TEST_CASE("subnormal numbers count as 0 within a round and as themselves outside") {
  ComputePool pool(2);
  volatile float smallest = std::numeric_limits<float>::min();
  std::array<std::atomic<int>, 64> flushed{};
  pool.run(flushed.size(), [&](std::uint64_t shard, std::uint32_t) {
    volatile float half = smallest * 0.5f;
    flushed[shard] = half == 0.0f ? 1 : -1;
  });
  for (const auto& one : flushed) CHECK(one == 1);
  volatile float half = smallest * 0.5f;
  CHECK(std::fpclassify(half) == FP_SUBNORMAL);
}
