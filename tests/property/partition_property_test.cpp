/// The planner against brute force on small instances: all orders of all subsets of the devices,
/// all cuts, each priced by the public functions alone.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "planner/plan.h"
#include "planner/schedules.h"
#include "planner/simulate.h"
#include "planner/step_costs.h"
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
    return std::uniform_int_distribution<int>(from, to)(random);
  };
  Instance made;
  const bool tied = pick(0, 1) == 1;
  made.model = small_model(static_cast<std::uint32_t>(pick(1, 3)), tied);
  made.profile = round_profile(pick(0, 30) / 10.0, tied);
  std::vector<double> speeds(static_cast<std::size_t>(pick(1, 3)));
  for (double& speed : speeds) speed = pick(1, 4);
  made.cluster = cluster_of(speeds);
  made.cluster.same_process.latency = pick(0, 400) * 1e-6;
  made.cluster.nodes.push_back({"n1", true});
  for (DeviceSpec& device : made.cluster.devices) {
    device.node = NodeId{static_cast<std::uint32_t>(pick(0, 1))};
    device.memory = Bytes{1024} * static_cast<Bytes>(pick(1200, 6000));
  }
  made.options =
      options_of(static_cast<std::uint32_t>(pick(1, 5)), static_cast<ScheduleKind>(pick(0, 3)));
  made.options.chunks = 1;
  return made;
}

/// The least step time over everything that fits; infinity where nothing does.
Seconds brute_force(const Instance& given) {
  Seconds best = std::numeric_limits<Seconds>::infinity();
  const std::uint32_t layers = layer_count(given.model);
  const auto devices = static_cast<std::uint32_t>(given.cluster.devices.size());
  for (std::uint32_t mask = 0; mask < (1u << (layers - 1)); ++mask) {
    std::vector<std::uint32_t> sizes{1};  // bit l set: a cut after layer l
    for (std::uint32_t l = 0; l + 1 < layers; ++l)
      if ((mask >> l & 1) != 0) {
        sizes.push_back(1);
      } else {
        ++sizes.back();
      }
    if (sizes.size() > devices) continue;
    std::vector<std::uint32_t> order(devices);
    std::iota(order.begin(), order.end(), 0u);
    do {
      auto stages = stages_of(sizes);
      for (std::size_t s = 0; s < stages.size(); ++s) stages[s].device = DeviceId{order[s]};
      StageMap map;
      for (const StagePlan& stage : stages) map.device_of_stage.push_back(stage.device);
      map.device_count = devices;
      map.microbatch_count = given.options.shape.microbatch_count;
      map.tied = given.model.tied;
      const Schedule schedule = make_schedule(given.options.schedule, map).value();
      const auto memory = memory_of(stages, schedule, given.cluster, given.model, given.profile);
      bool fits = true;
      for (std::uint32_t d = 0; d < devices; ++d)
        fits = fits && memory[d].total() <= given.cluster.devices[d].memory;
      if (!fits) continue;
      const StepCosts costs =
          step_costs(stages, given.cluster, given.model, given.profile, DType::f32);
      best = std::min(best, simulate(schedule, costs).makespan());
    } while (std::next_permutation(order.begin(), order.end()));
  }
  return best;
}

}  // namespace

TEST_CASE("the plan is the optimum wherever all candidates can be tried") {
  std::size_t fitting = 0;
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    const Instance given = random_instance(seed);
    const Seconds best = brute_force(given);
    const auto plan = make_plan(given.model, given.cluster, given.profile, given.options);
    CHECK(plan.ok() == std::isfinite(best));
    if (!plan) {
      CHECK(plan.error().code == ErrorCode::does_not_fit);
      continue;
    }
    ++fitting;
    CHECK(plan->predicted_step <= best * (1 + 1e-8));
    CHECK(plan->predicted_step >= best * (1 - 1e-8));
  }
  CHECK(fitting > 50);
  CHECK(fitting < 200);
}

TEST_CASE("L009 every layer is placed exactly once, for any model and cluster") {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto pick = [&](int from, int to) {
      return std::uniform_int_distribution<int>(from, to)(random);
    };
    std::vector<double> speeds(static_cast<std::size_t>(pick(1, 9)));
    for (double& speed : speeds) speed = pick(1, 5);
    PlanOptions options =
        options_of(static_cast<std::uint32_t>(pick(1, 6)), static_cast<ScheduleKind>(pick(0, 3)));
    options.chunks = static_cast<std::uint32_t>(pick(1, 2));
    const auto plan = make_plan(small_model(static_cast<std::uint32_t>(pick(1, 40))),
                                cluster_of(speeds), round_profile(pick(1, 40) / 10.0), options);
    if (!plan) FAIL(plan.error().text);
    std::uint32_t next = 0;
    for (const StagePlan& stage : plan->stages) {
      CHECK(stage.layers.first == next);
      CHECK(stage.layers.last > next);
      next = stage.layers.last;
    }
    CHECK(next == layer_count(plan->model));
    CHECK(plan->unused.size() + std::min(plan->stages.size(), speeds.size()) >= speeds.size());
  }
}
