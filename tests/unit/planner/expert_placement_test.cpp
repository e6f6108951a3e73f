#include "planner/expert_placement.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/support/catch.h"

namespace troupe {
namespace {

using Counts = std::vector<std::uint32_t>;

TEST_CASE("L078 experts go to unlike devices in unequal numbers, by memory") {
  // What a device is full of: experts over memory.
  const std::vector<ExpertHost> hosts{{1 / 3.0, 8}, {1 / 2.0, 8}, {1 / 1.0, 8}};
  const auto counts = expert_counts(8, hosts);
  REQUIRE(counts.ok());
  CHECK(*counts == Counts{4, 3, 1});
}

TEST_CASE("L078 what the devices cannot hold together is refused with both numbers") {
  const auto refused = expert_counts(8, {{1, 3}, {1, 2}, {1, 1}});
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::does_not_fit);
  CHECK(refused.error().text == "8 experts do not fit: the 3 devices hold 6 together");
  CHECK_FALSE(place_experts(std::vector<double>(8, 1.0), {{1, 3}, {1, 2}, {1, 1}}).ok());
  CHECK_FALSE(expert_counts(1, {}).ok());
}

/// The least time of the busiest host over every placement.
Seconds by_brute_force(const std::vector<double>& loads, const std::vector<ExpertHost>& hosts) {
  Seconds least = std::numeric_limits<Seconds>::infinity();
  Counts host(loads.size(), 0);
  while (true) {
    std::vector<double> load(hosts.size(), 0);
    Counts count(hosts.size(), 0);
    for (std::size_t e = 0; e < loads.size(); ++e) {
      load[host[e]] += loads[e];
      ++count[host[e]];
    }
    Seconds slowest = 0;
    bool fits = true;
    for (std::size_t h = 0; h < hosts.size(); ++h) {
      fits = fits && count[h] <= hosts[h].most;
      slowest = std::max(slowest, load[h] * hosts[h].seconds_per_load);
    }
    if (fits) least = std::min(least, slowest);
    std::size_t e = 0;
    while (e < loads.size() && ++host[e] == hosts.size()) host[e++] = 0;
    if (e == loads.size()) return least;
  }
}

TEST_CASE("placements of experts are the best ones, over random small instances") {
  constexpr std::uint32_t seed = 20261203;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&random](std::uint32_t end) {
    return static_cast<std::uint32_t>(random() % end);
  };
  for (int round = 0; round < 150; ++round) {
    std::vector<ExpertHost> hosts(2 + below(2));
    for (ExpertHost& host : hosts) host = {0.25 * (1 + below(8)), 1 + below(6)};
    const std::uint32_t room =
        std::accumulate(hosts.begin(), hosts.end(), 0U,
                        [](std::uint32_t sum, const ExpertHost& host) { return sum + host.most; });
    std::vector<double> loads(1 + below(std::min(room, 8U)));
    for (double& load : loads) load = round % 3 == 0 ? 1 : below(20);
    INFO("round " << round);
    const auto placed = place_experts(loads, hosts);
    REQUIRE(placed.ok());
    const Seconds best = by_brute_force(loads, hosts);
    CHECK(placed->proven);
    CHECK(std::abs(placed->seconds - best) <= 1e-12 * best);
    CHECK(placed->bound <= best * (1 + 1e-12));
    Counts count(hosts.size(), 0);
    for (const std::uint32_t host : placed->host) ++count[host];
    for (std::size_t h = 0; h < hosts.size(); ++h) CHECK(count[h] <= hosts[h].most);
    if (round % 3 != 0) continue;
    const auto counts = expert_counts(static_cast<std::uint32_t>(loads.size()), hosts);
    REQUIRE(counts.ok());
    Seconds slowest = 0;
    for (std::size_t h = 0; h < hosts.size(); ++h)
      slowest = std::max(slowest, (*counts)[h] * hosts[h].seconds_per_load);
    CHECK(std::abs(slowest - best) <= 1e-12 * best);
  }
}

TEST_CASE("256 experts of skewed load come near the bound on unlike devices") {
  std::vector<double> loads;
  for (int e = 0; e < 256; ++e) loads.push_back(1.0 / (1 + e % 64));  // Zipf, four times
  std::vector<ExpertHost> hosts;
  for (int h = 0; h < 16; ++h) hosts.push_back({h % 3 == 0 ? 2.0 : 1.0, 32});
  const auto placed = place_experts(loads, hosts, 20'000);
  REQUIRE(placed.ok());
  CHECK(placed->seconds <= 1.02 * placed->bound);
}

TEST_CASE("no experts and no load are placed too") {
  const auto none = place_experts({}, {{1, 1}});
  REQUIRE(none.ok());
  CHECK(none->seconds == 0);
  const auto idle = place_experts({0, 0, 0}, {{1, 2}, {2, 2}});
  REQUIRE(idle.ok());
  CHECK(idle->seconds == 0);
  CHECK(idle->proven);
}

}  // namespace
}  // namespace troupe
