/// Replicas, shares and stages chosen together, against all groupings and all shares.
#include "planner/joint_plan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "planner/virtual_workers.h"
#include "tests/support/catch.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

struct Instance {
  ModelSpec model;
  ModelProfile profile;
  ClusterSpec cluster;
  PlanOptions options;
};

Instance random_instance(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto pick = [&](int from, int to) {
    return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
  };
  Instance made;
  made.model = small_model(static_cast<std::uint32_t>(pick(1, 3)));
  made.profile = round_profile(pick(0, 20) / 10.0);
  std::vector<double> speeds(static_cast<std::size_t>(pick(1, 4)));
  for (double& speed : speeds) speed = pick(1, 3);
  made.cluster = cluster_of(speeds);
  const int nodes = pick(1, 2);
  if (nodes == 2) made.cluster.nodes.push_back({"n1", true});
  for (NodeSpec& node : made.cluster.nodes)
    if (pick(0, 1) > 0) node.host = {Bytes{1024} * static_cast<Bytes>(pick(2000, 9000)), 4e9};
  for (DeviceSpec& device : made.cluster.devices) {
    device.node = NodeId{static_cast<std::uint32_t>(pick(0, nodes - 1))};
    device.memory = Bytes{1024} * static_cast<Bytes>(pick(800, 6000));
    device.host_link = {1e-6, pick(1, 20) * 1e8};
  }
  made.cluster.between_processes.bandwidth = pick(1, 20) * 1e9;
  made.options = options_of(static_cast<std::uint32_t>(pick(1, 6)));
  return made;
}

/// Own step of a group for each number of microbatches, 0 to all.
struct Priced {
  std::vector<Seconds> steps;
  std::vector<VirtualWorker> workers;
};

Priced priced(const Instance& given, const std::vector<std::uint32_t>& group) {
  Priced out{{0}, {{}}};
  const ClusterSpec part = part_of(given.cluster, group);
  for (std::uint32_t m = 1; m <= given.options.shape.microbatch_count; ++m) {
    PlanOptions options = given.options;
    options.shape.microbatch_count = m;
    const auto made = choose_pipeline(given.model, part, given.profile, options, {});
    out.steps.push_back(made ? made->step : std::numeric_limits<Seconds>::infinity());
    VirtualWorker& worker = out.workers.emplace_back();
    if (made)
      for (const StagePlan& stage : made->stages)
        worker.stages.push_back(
            {group[stage.device.index()], stage.layers.first, stage.layers.last});
  }
  return out;
}

Seconds brute_force(const Instance& given) {
  const auto devices = static_cast<std::uint32_t>(given.cluster.devices.size());
  std::vector<Priced> by_set(1u << devices);
  for (std::uint32_t set = 1; set < by_set.size(); ++set) {
    std::vector<std::uint32_t> group;
    for (std::uint32_t d = 0; d < devices; ++d)
      if ((set >> d & 1) != 0) group.push_back(d);
    by_set[set] = priced(given, group);
  }
  WorkerCosts costs;
  for (std::uint32_t l = 0; l < layer_count(given.model); ++l) {
    WorkerLayer layer;
    layer.gradient_bytes = static_cast<double>(given.profile.layer(given.model, l).gradient_bytes);
    costs.layers.push_back(layer);
  }
  Seconds best = std::numeric_limits<Seconds>::infinity();
  std::vector<VirtualWorker> workers;
  const std::function<void(std::uint32_t, std::uint32_t, Seconds)> extend =
      [&](std::uint32_t left, std::uint32_t microbatches, Seconds slowest) {
        if (microbatches == 0)
          best = std::min(
              best, slowest + exchange_seconds(worker_cluster(given.cluster), costs, workers));
        // Every set of devices that are left, with every share.
        for (std::uint32_t set = left; set > 0 && microbatches > 0; set = (set - 1) & left)
          for (std::uint32_t m = 1; m <= microbatches; ++m) {
            if (by_set[set].steps[m] == std::numeric_limits<Seconds>::infinity()) break;
            workers.push_back(by_set[set].workers[m]);
            extend(left & ~set, microbatches - m, std::max(slowest, by_set[set].steps[m]));
            workers.pop_back();
          }
      };
  extend((1u << devices) - 1, given.options.shape.microbatch_count, 0);
  return best;
}

}  // namespace

TEST_CASE("replicas, shares and stages are chosen together as well as all of them allow") {
  std::size_t compared = 0, replicated = 0, tiers = 0, equal = 0;
  double excess = 0;
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    INFO("seed " << seed);
    const Instance given = random_instance(seed);
    const Seconds best = brute_force(given);
    const auto found = joint_plan(given.model, given.cluster, given.profile, given.options);
    REQUIRE(found.has_value() == std::isfinite(best));
    if (!found) continue;
    ++compared;
    CHECK(found->exact);
    CHECK(found->step >= best * (1 - 1e-9));
    equal += found->step <= best * (1 + 1e-9) ? 1 : 0;
    excess += found->step / best - 1;
    replicated += found->replicas.size() > 1 ? 1 : 0;
    std::uint32_t shared = 0;
    std::vector<int> uses(given.cluster.devices.size());
    for (const JointReplica& replica : found->replicas) {
      shared += replica.microbatches;
      CHECK(replica.step <= found->step - found->exchange + 1e-12);
      std::uint32_t next = 0;
      for (const StagePlan& stage : replica.pipeline.stages) {
        ++uses[stage.device.index()];
        CHECK(stage.layers.first == next);
        next = stage.layers.last;
      }
      CHECK(next == layer_count(given.model));
      for (const StagePoint& point : replica.pipeline.points) tiers += point.host > 0 ? 1 : 0;
    }
    CHECK(shared == given.options.shape.microbatch_count);
    CHECK(std::all_of(uses.begin(), uses.end(), [](int n) { return n <= 1; }));
  }
  INFO("compared " << compared << ", equal " << equal << ", replicated " << replicated << ", tiers "
                   << tiers << ", excess " << excess);
  CHECK(compared > 60);
  CHECK(replicated > 15);
  CHECK(tiers > 15);
  CHECK(static_cast<double>(equal) > 0.9 * static_cast<double>(compared));
  CHECK(excess / static_cast<double>(compared) < 0.005);
}
