/// Virtual workers against all orders, cuts and shares there are, on small instances.
#include "planner/virtual_workers.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "tests/support/catch.h"

using namespace troupe;
using Catch::Matchers::Contains;

namespace {

/// Four nodes of four: kinds V, R, G, Q of falling speed, as in HetPipe's cluster.
WorkerCluster four_nodes() {
  WorkerCluster cluster;
  for (std::uint32_t node = 0; node < 4; ++node)
    for (int i = 0; i < 4; ++i) cluster.devices.push_back({node, NodeId{node}, 100});
  return cluster;
}

WorkerCosts costs_of(std::size_t kinds, std::size_t layers) {
  WorkerCosts costs;
  costs.layers.assign(layers, {1, 1, 1, 1});
  for (std::size_t kind = 0; kind < kinds; ++kind)
    costs.seconds.emplace_back(layers, static_cast<double>(kind + 1));
  return costs;
}

Seconds border(const WorkerCluster& cluster,
               const WorkerCosts& costs,
               std::uint32_t from,
               std::uint32_t to,
               std::uint32_t cut) {
  const bool near = cluster.devices[from].node == cluster.devices[to].node;
  const LinkSpec& link = near ? cluster.within_node : cluster.between_nodes;
  return link.latency + costs.layers[cut - 1].output_bytes / link.bandwidth;
}

/// The slowest stage of given stages; infinity where one does not fit.
Seconds slowest_of(const WorkerCluster& cluster,
                   const WorkerCosts& costs,
                   const std::vector<WorkerStage>& stages,
                   std::uint32_t in_flight) {
  Seconds slowest = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const WorkerStage& stage = stages[s];
    const WorkerDevice& device = cluster.devices[stage.device];
    Seconds own = 0;
    double bytes = 0;
    const double held = std::min<double>(in_flight, static_cast<double>(stages.size() - s));
    for (std::uint32_t layer = stage.first; layer < stage.last; ++layer) {
      own += costs.seconds[device.kind][layer];
      bytes += costs.layers[layer].state_bytes + held * costs.layers[layer].kept_bytes;
    }
    if (s > 0) own += border(cluster, costs, stages[s - 1].device, stage.device, stage.first);
    if (s + 1 < stages.size())
      own += border(cluster, costs, stage.device, stages[s + 1].device, stage.last);
    if (bytes > device.memory_bytes) return std::numeric_limits<double>::infinity();
    slowest = std::max(slowest, own);
  }
  return slowest;
}

/// The best of all stages that continue `stages` with devices that are left.
Seconds best_of_all(const WorkerCluster& cluster,
                    const WorkerCosts& costs,
                    std::vector<WorkerStage>& stages,
                    std::uint32_t in_flight) {
  const std::uint32_t first = stages.empty() ? 0 : stages.back().last;
  if (first == costs.layers.size()) return slowest_of(cluster, costs, stages, in_flight);
  Seconds best = std::numeric_limits<double>::infinity();
  for (std::uint32_t device = 0; device < cluster.devices.size(); ++device) {
    if (std::any_of(stages.begin(), stages.end(), [&](auto& s) { return s.device == device; }))
      continue;
    for (std::uint32_t last = first + 1; last <= costs.layers.size(); ++last) {
      stages.push_back({device, first, last});
      best = std::min(best, best_of_all(cluster, costs, stages, in_flight));
      stages.pop_back();
    }
  }
  return best;
}

}  // namespace

TEST_CASE("virtual workers: the allocations of HetPipe's cluster") {
  const WorkerCluster cluster = four_nodes();
  const WorkerCosts costs = costs_of(4, 8);
  const auto np = allocate_workers(cluster, costs, WorkerAllocation::node_partition);
  REQUIRE(np->size() == 4);
  CHECK((*np)[1] == std::vector<std::uint32_t>{4, 5, 6, 7});
  const auto ed = allocate_workers(cluster, costs, WorkerAllocation::equal_distribution);
  REQUIRE(ed->size() == 4);
  CHECK((*ed)[1] == std::vector<std::uint32_t>{1, 5, 9, 13});
  const auto hd = allocate_workers(cluster, costs, WorkerAllocation::hybrid_distribution);
  REQUIRE(hd->size() == 4);
  CHECK((*hd)[0] == std::vector<std::uint32_t>{0, 1, 12, 13});
  CHECK((*hd)[3] == std::vector<std::uint32_t>{6, 7, 10, 11});
  CHECK(allocate_workers(cluster, costs, WorkerAllocation::single)->front().size() == 16);
}

TEST_CASE("virtual workers: an odd kind stands alone, and unequal counts are dealt evenly") {
  WorkerCluster cluster;
  for (const std::uint32_t kind : {0, 0, 0, 0, 1, 1, 2, 2})
    cluster.devices.push_back({kind, NodeId{kind}, 100});
  const auto hd = allocate_workers(cluster, costs_of(3, 4), WorkerAllocation::hybrid_distribution);
  // Kinds 0 and 2 on two nodes: two workers of 2 + 1. Kind 1 on one node: one worker.
  CHECK(*hd == std::vector<std::vector<std::uint32_t>>{{0, 1, 6}, {2, 3, 7}, {4, 5}});
}

TEST_CASE("virtual workers: stages are as good as the best of all orders and cuts") {
  for (std::uint32_t seed = 0; seed < 150; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto any = [&](std::uint32_t most) {
      return static_cast<std::uint32_t>(random() % most);
    };
    WorkerCluster cluster;
    cluster.within_node = {0.25, 8};
    cluster.between_nodes = {0.5, 2};
    const std::uint32_t devices = 1 + any(4), kinds = 1 + any(3), layers = 1 + any(6);
    for (std::uint32_t i = 0; i < devices; ++i)
      cluster.devices.push_back({any(kinds), NodeId{any(2)}, 4.0 + any(3) * 6});
    WorkerCosts costs = costs_of(kinds, layers);
    for (auto& row : costs.seconds)
      for (Seconds& seconds : row) seconds = 1 + any(6);
    for (WorkerLayer& layer : costs.layers)
      layer = {1.0 + any(3), 1, static_cast<double>(any(2)), static_cast<double>(any(4))};
    std::vector<std::uint32_t> members(devices);
    std::iota(members.begin(), members.end(), 0U);
    for (const std::uint32_t in_flight : {1U, 2U, 4U}) {
      std::vector<WorkerStage> stages;
      const Seconds best = best_of_all(cluster, costs, stages, in_flight);
      const auto found = split_worker(cluster, costs, members, in_flight);
      REQUIRE(found.ok() == (best < std::numeric_limits<double>::infinity()));
      if (!found) continue;
      CHECK(found->slowest == Approx(best));
      CHECK(slowest_of(cluster, costs, found->stages, in_flight) == Approx(best));
      CHECK(found->stages.size() + found->unused.size() == devices);
    }
  }
}

TEST_CASE("virtual workers: a device that would only slow the worker down is left out") {
  WorkerCluster cluster;
  cluster.devices = {{0, NodeId{0}, 100}, {1, NodeId{1}, 100}};
  cluster.between_nodes = {5, 1};  // five seconds a message: dearer than all layers
  const auto worker = split_worker(cluster, costs_of(2, 4), {0, 1}, 2);
  CHECK(worker->stages == std::vector<WorkerStage>{{0, 0, 4}});
  CHECK(worker->unused == std::vector<std::uint32_t>{1});
  CHECK(worker->slowest == 4);
}

TEST_CASE("virtual workers: a large worker's devices stand in the order of their memory") {
  WorkerCluster cluster;
  // 20 classes of one device make too many sets.
  for (std::uint32_t i = 0; i < 20; ++i) cluster.devices.push_back({0, NodeId{0}, 100.0 + i});
  std::vector<std::uint32_t> members(20);
  std::iota(members.begin(), members.end(), 0U);
  const auto worker = split_worker(cluster, costs_of(1, 40), members, 20);
  REQUIRE(worker->stages.size() == 20);
  CHECK(worker->stages.front().device == 19);
  CHECK(worker->slowest == 2);
  CHECK(worker->round_trip == 40);
}

TEST_CASE("virtual workers: shares are as good as the best of all") {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    std::vector<Seconds> fills, periods;
    for (int w = 0; w < 3; ++w) {
      fills.push_back(static_cast<double>(random() % 8));
      periods.push_back(static_cast<double>(1 + random() % 5));
    }
    const auto total = static_cast<std::uint32_t>(random() % 10);
    const auto end = [&](const std::vector<std::uint32_t>& shares) {
      Seconds last = 0;
      for (std::size_t w = 0; w < 3; ++w)
        if (shares[w] > 0) last = std::max(last, fills[w] + shares[w] * periods[w]);
      return last;
    };
    Seconds best = 1e9;
    for (std::uint32_t a = 0; a <= total; ++a)
      for (std::uint32_t b = 0; a + b <= total; ++b)
        best = std::min(best, end({a, b, total - a - b}));
    const auto shares = share_microbatches(total, fills, periods);
    CHECK(std::accumulate(shares.begin(), shares.end(), 0U) == total);
    CHECK(end(shares) == best);
  }
}

TEST_CASE("virtual workers: layers on one node for all workers stay off the network") {
  WorkerCluster cluster;
  for (const std::uint32_t node : {0, 0, 1, 1}) cluster.devices.push_back({node, NodeId{node}, 3});
  cluster.within_node = {0, 100};
  cluster.between_nodes = {0, 1};
  WorkerCosts costs = costs_of(1, 2);
  costs.seconds.push_back(costs.seconds[0]);
  costs.layers.assign(2, {2, 50, 0, 0});  // a device holds one of the two
  // ED: either layer is on one node for both workers. 2 x 50 bytes of a device at 100 bytes/s.
  const auto ed = plan_workers(cluster, costs, WorkerAllocation::equal_distribution, 4);
  REQUIRE(ed.ok());
  CHECK(ed->workers.size() == 2);
  CHECK(ed->synchronise == 1);
  // NP: both layers on both nodes: half of 2 x 2 x 50 bytes crosses each node's port at 1 byte/s.
  const auto np = plan_workers(cluster, costs, WorkerAllocation::node_partition, 4);
  REQUIRE(np.ok());
  CHECK(np->synchronise == 100);
}

TEST_CASE("virtual workers: the allocation with the shortest step, unequal shares included") {
  WorkerCluster cluster;
  for (const std::uint32_t kind : {0, 0, 1, 1})
    cluster.devices.push_back({kind, NodeId{kind}, 100});
  cluster.within_node = {0, 1e9};
  cluster.between_nodes = {0, 1e9};
  WorkerCosts costs = costs_of(2, 4);
  costs.layers.assign(4, {1, 0, 0, 0});
  const auto np = plan_workers(cluster, costs, WorkerAllocation::node_partition, 6);
  REQUIRE(np.ok());
  // Stages of 2 and of 4 s. Five microbatches take 4 + 4 x 2 s, one takes 8 s, two 8 + 4 s.
  CHECK(np->workers[0].slowest == 2);
  CHECK(np->workers[1].slowest == 4);
  CHECK(np->workers[0].share == 5);
  CHECK(np->workers[1].share == 1);
  CHECK(np->step == 12);
  const auto best = best_workers(cluster, costs, 6);
  REQUIRE(best.ok());
  for (std::size_t i = 0; i < worker_allocation_count; ++i) {
    const auto one = plan_workers(cluster, costs, static_cast<WorkerAllocation>(i), 6);
    if (one) CHECK(best->step <= one->step);
  }
}

TEST_CASE("virtual workers: what cannot be planned is refused by name") {
  const WorkerCosts costs = costs_of(1, 2);
  const auto refused = [&](const WorkerCluster& cluster, const WorkerCosts& wanted) {
    const auto plan = plan_workers(cluster, wanted, WorkerAllocation::single, 1);
    REQUIRE_FALSE(plan.ok());
    return plan.error().text;
  };
  WorkerCluster cluster;
  CHECK_THAT(refused(cluster, costs), Contains("no device"));
  cluster.devices = {{1, NodeId{0}, 100}};
  CHECK_THAT(refused(cluster, costs), Contains("device 0 is of kind 1"));
  cluster.devices = {{0, NodeId{0}, 1}};
  CHECK_THAT(refused(cluster, costs), Contains("does not fit"));
  cluster.devices[0].memory_bytes = -1;
  CHECK_THAT(refused(cluster, costs), Contains("memory"));
  cluster.devices[0].memory_bytes = 10;
  WorkerCosts bad = costs;
  bad.seconds[0][1] = -2;
  CHECK_THAT(refused(cluster, bad), Contains("kind 0"));
  bad = costs;
  bad.seconds[0].pop_back();
  CHECK_THAT(refused(cluster, bad), Contains("times of 1 layers"));
  CHECK_THAT(refused(cluster, WorkerCosts{}), Contains("no layers"));
  CHECK_THAT(plan_workers(cluster, costs, WorkerAllocation::single, 0).error().text,
             Contains("no microbatches"));
  CHECK_THAT(parse_worker_allocation("ned").error().text, Contains("np, ed, hd, single"));
  CHECK(*parse_worker_allocation("hd") == WorkerAllocation::hybrid_distribution);
}
