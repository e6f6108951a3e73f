/// How a matrix product is cut into parts for threads.
#include "kernels/cpu/shards.h"
#include "tests/support/catch.h"

using namespace troupe::kernels::cpu;

TEST_CASE("shards cover a product, also one without rows or columns, for any number of threads") {
  for (const std::uint64_t m : {0u, 1u, 17u, 512u, 4096u})
    for (const std::uint64_t n : {0u, 1u, 15u, 768u, 50257u})
      for (const std::uint32_t threads : {1u, 2u, 3u, 64u}) {
        INFO(m << " x " << n << " on " << threads);
        const MatmulShards shards = matmul_shards(m, n, threads);
        REQUIRE(shards.rows > 0);
        REQUIRE(shards.columns > 0);
        const std::uint64_t down = shard_count(m, shards.rows);
        const std::uint64_t across = shard_count(n, shards.columns);
        CHECK(down * shards.rows >= m);
        CHECK(across * shards.columns >= n);
        CHECK((down == 0) == (m == 0));
        CHECK((across == 0) == (n == 0));
      }
}
