/// The search for large clusters against the exact one, on instances that both can do.
#include "planner/large_partition.h"

#include <algorithm>
#include <random>

#include "planner/partition.h"
#include "tests/support/catch.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("pipelines that are filled and improved are the optimum on nearly all small instances") {
  std::size_t compared = 0;
  std::size_t equal = 0;
  for (std::uint32_t seed = 0; seed < 150; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto pick = [&](int from, int to) {
      return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
    };
    const bool tied = pick(0, 1) == 1;
    const ModelSpec model = small_model(static_cast<std::uint32_t>(pick(1, 6)), tied);
    const ModelProfile profile = round_profile(pick(0, 30) / 10.0, tied);
    std::vector<double> speeds(static_cast<std::size_t>(pick(1, 3)));
    for (double& speed : speeds) speed = pick(1, 4);
    ClusterSpec cluster = cluster_of(speeds);
    cluster.same_process.latency = pick(0, 400) * 1e-6;
    for (DeviceSpec& device : cluster.devices)
      device.memory = Bytes{1024} * static_cast<Bytes>(pick(1200, 9000));
    const PlanOptions options = options_of(static_cast<std::uint32_t>(pick(1, 12)));
    const PartitionSearch exact = search_partition(model, cluster, profile, options);
    Pricer pricer(model, cluster, profile, options);
    const auto found = large_partitions(pricer, cluster, options, tied);
    if (!exact.found) {
      CHECK(found.empty());
      continue;
    }
    REQUIRE(exact.found->exact);
    ++compared;
    if (found.empty()) continue;
    const Seconds step = pricer.simulate(found.front());
    CHECK(pricer.fit(found.front()).over <= 0);
    CHECK(step >= exact.found->step * (1 - 1e-9));
    if (step <= exact.found->step * (1 + 1e-9)) ++equal;
  }
  CHECK(compared > 80);
  CHECK(equal >= compared * 95 / 100);
}
