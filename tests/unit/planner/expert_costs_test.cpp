#include "planner/expert_costs.h"

#include "tests/support/catch.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

using Counts = std::vector<std::uint32_t>;
using Devices = std::vector<bool>;

}  // namespace

TEST_CASE("rounds of a small batch are of every size, of a large one few") {
  CHECK(round_sizes(5, 8) == Counts{1, 2, 3, 4, 5});
  // In 1, 2, 4, ... 32 rounds, and in 3 and 100.
  CHECK(round_sizes(100, 8) == Counts{1, 4, 7, 13, 25, 34, 50, 100});
  CHECK(round_sizes(4096, 4).size() <= 4);
}

TEST_CASE("pieces are shared out by speed, then more evenly, then on fewer hosts") {
  const auto shares = shares_of_pieces(4, {{1, 9}, {3, 9}});
  CHECK(shares == std::vector<Counts>{{3, 1}, {2, 2}, {4, 0}});
  CHECK(shares_of_pieces(4, {{1, 2}, {3, 1}}).empty());
  CHECK(shares_of_pieces(2, {{1, 2}, {3, 0}}) == std::vector<Counts>{{2, 0}});
}

TEST_CASE("exchanges are as slow as the slowest link between the two sides") {
  ClusterSpec cluster = cluster_of({1, 1, 1, 1});
  cluster.nodes = {{"one", false}, {"two", true}};
  cluster.devices[2].node = cluster.devices[3].node = NodeId{1};
  cluster.same_process = {1e-6, 1e10};
  cluster.between_processes = {1e-5, 1e9};
  const auto seconds = [&](const Devices& from, const Devices& to) {
    return slowest_transfer(links_between(cluster, from, to), 1e6);
  };
  CHECK(seconds({true, false, false, false}, {false, true, false, false}) == Approx(1e-6 + 1e-4));
  CHECK(seconds({true, true, false, false}, {false, false, true, true}) == Approx(1e-5 + 1e-3));
  cluster.overrides[{1, 2}] = {0, 1e8};
  CHECK(seconds({true, true, false, false}, {false, false, true, true}) == Approx(1e-2));
  CHECK(seconds({false, false, true, true}, {true, true, false, false}) == Approx(1e-5 + 1e-3));
  // A ring of two sends half of the bytes twice; one device has nothing to send.
  CHECK(ring_sum(cluster, {true, true, false, false}, 2e6) == Approx(2 * (1e-6 + 1e-4)));
  CHECK(ring_sum(cluster, {true, false, false, false}, 2e6) == 0);
}

TEST_CASE("bytes of a device grow with its sequences, its experts and the rounds it holds") {
  ExpertCosts costs;
  costs.layers = 2;
  costs.experts = 4;
  costs.dense_state = 1000;
  costs.dense_workspace = 50;
  costs.dense_kept = 100;
  costs.exchange = 10;
  costs.expert_state = 200;
  costs.expert_kept = 40;
  costs.expert_workspace = 8;
  const ExpertRound round{6, 3, {}};
  CHECK(dense_bytes(costs, round, 0) == 0);
  CHECK(dense_bytes(costs, round, 2) == 1000 + 50 + 2 * (3 * 100 + 2 * 10));
  // An expert keeps a quarter of 40 bytes of each of 6 sequences of 3 rounds, and has scratch for
  // those of one.
  CHECK(expert_bytes(costs, round, 5, 3) == 5 * (200 + 3 * 6 * 10) + 3 * 6 * 2);
  for (const double room : {1049.0, 1370.0, 3000.0}) {
    const std::uint32_t most = sequences_in(costs, round, room);
    CHECK((most == 0 || dense_bytes(costs, round, most) <= room));
    CHECK(dense_bytes(costs, round, most + 1) > room);
    const std::uint32_t experts = experts_in(costs, round, room);
    CHECK(expert_bytes(costs, round, 2 * experts, experts) <= room);
    CHECK(expert_bytes(costs, round, 2 * (experts + 1), experts + 1) > room);
  }
}
