/// Planning at scale, on the processor's clock.
#include <ctime>
#include <random>

#include "planner/plan.h"
#include "tests/support/catch.h"
#include "tests/support/sanitizers.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("128 layers on 1,024 devices of 8 kinds are planned within 2 seconds of a core") {
  constexpr Bytes memories[] = {24_MiB, 8_MiB, 40_MiB, 16_MiB, 12_MiB, 32_MiB, 10_MiB, 20_MiB};
  std::vector<double> speeds;
  for (std::uint32_t d = 0; d < 1024; ++d) speeds.push_back(1.0 + d % 8);
  ClusterSpec cluster = cluster_of(speeds);
  for (std::uint32_t d = 0; d < 1024; ++d) cluster.devices[d].memory = memories[d % 8];
  const std::clock_t begin = std::clock();
  const auto plan = make_plan(small_model(126), cluster, round_profile(), options_of(64));
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  REQUIRE(plan.ok());
  CHECK(plan->stages.size() > 1);
  CHECK(seconds < (test::address_sanitizer || test::thread_sanitizer ? 60.0 : 2.0));
}
