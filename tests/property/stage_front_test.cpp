/// Pipelines whose stages compute again what does not fit, against all orders, cuts and counts.
#include "planner/stage_front.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "planner/memory.h"
#include "planner/pipeline_time.h"
#include "planner/stage_memory.h"
#include "planner/step_choices.h"
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
    return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
  };
  Instance made;
  made.model = small_model(static_cast<std::uint32_t>(pick(2, 4)));
  made.profile = round_profile(pick(0, 20) / 10.0);
  made.profile.block.saved_bytes = 400 * 1024;
  std::vector<double> speeds(static_cast<std::size_t>(pick(1, 3)));
  for (double& speed : speeds) speed = pick(1, 4);
  made.cluster = cluster_of(speeds);
  for (DeviceSpec& device : made.cluster.devices)
    device.memory = Bytes{1024} * static_cast<Bytes>(pick(1500, 7000));
  made.options = options_of(static_cast<std::uint32_t>(pick(2, 6)));
  return made;
}

/// Bytes of a stage of which `again` blocks compute again.
Bytes stage_bytes(const Instance& given,
                  LayerRange layers,
                  std::uint32_t in_flight,
                  std::uint32_t again) {
  const LayerProfile changed = recomputed(given.profile.block);
  MemoryPlan memory = stage_memory(given.model, given.profile, layers, in_flight, 0);
  memory.activations -=
      Bytes{in_flight} * again * (given.profile.block.saved_bytes - changed.saved_bytes);
  if (again > 0) memory.workspace = std::max(memory.workspace, changed.backward_workspace_bytes);
  return memory.total();
}

/// The step of given stages with the fewest blocks computing again; infinity where none fits.
Seconds step_of(const Instance& given, const std::vector<StagePlan>& stages) {
  StageMap map;
  map.transfer_slots = given.options.transfer_slots;
  for (const StagePlan& stage : stages) map.device_of_stage.push_back(stage.device);
  StepCosts costs = step_costs(stages, given.cluster, given.model, given.profile, DType::f32);
  for (std::uint32_t s = 0; s < stages.size(); ++s) {
    const LayerRange layers = stages[s].layers;
    const DeviceSpec& device = given.cluster.devices[stages[s].device.index()];
    const std::uint32_t blocks =
        layers.size() - (layers.first == 0) - (layers.last == layer_count(given.model));
    const auto flight = std::min(static_cast<std::uint32_t>(stages.size()) - s,
                                 given.options.shape.microbatch_count);
    const Bytes edges =
        edge_bytes(edge_buffers(StageId{s}, map, given.cluster), given.model, given.profile);
    std::uint32_t again = 0;
    while (again <= blocks && stage_bytes(given, layers, flight, again) + edges > device.memory)
      ++again;
    if (again > blocks) return std::numeric_limits<Seconds>::infinity();
    costs.stages[s].backward_input +=
        again * layer_seconds(device, given.profile.block, DType::f32).forward;
  }
  return one_f_one_b_seconds(costs, given.options.shape.microbatch_count,
                             given.options.transfer_slots, false);
}

Seconds brute_force(const Instance& given) {
  Seconds best = std::numeric_limits<Seconds>::infinity();
  const std::uint32_t layers = layer_count(given.model);
  const auto devices = static_cast<std::uint32_t>(given.cluster.devices.size());
  for (std::uint32_t mask = 0; mask < (1u << (layers - 1)); ++mask) {
    std::vector<std::uint32_t> sizes{1};
    for (std::uint32_t l = 0; l + 1 < layers; ++l)
      if ((mask >> l & 1) != 0)
        sizes.push_back(1);
      else
        ++sizes.back();
    if (sizes.size() > devices) continue;
    std::vector<std::uint32_t> order(devices);
    std::iota(order.begin(), order.end(), 0u);
    do {
      auto stages = stages_of(sizes);
      for (std::size_t s = 0; s < stages.size(); ++s) stages[s].device = DeviceId{order[s]};
      best = std::min(best, step_of(given, stages));
    } while (std::next_permutation(order.begin(), order.end()));
  }
  return best;
}

}  // namespace

TEST_CASE("fronts of time against memory, joined, come near the best of all choices") {
  std::size_t compared = 0;
  std::size_t with_recompute = 0;
  double excess = 0;
  for (std::uint32_t seed = 0; seed < 120; ++seed) {
    INFO("seed " << seed);
    const Instance given = random_instance(seed);
    const Seconds best = brute_force(given);
    const auto found =
        recomputed_pipeline(given.model, given.cluster, given.profile, given.options);
    if (!found) continue;
    REQUIRE(std::isfinite(best));
    ++compared;
    if (std::any_of(found->again.begin(), found->again.end(), [](auto n) { return n > 0; }))
      ++with_recompute;
    CHECK(found->step >= best * (1 - 1e-9));
    // No more is claimed than the stages hold.
    CHECK(found->step >= step_of(given, found->stages) * (1 - 1e-9));
    excess += found->step / best - 1;
  }
  INFO("compared " << compared << ", with recomputation " << with_recompute << ", excess "
                   << excess);
  CHECK(compared > 60);
  CHECK(with_recompute > 15);
  CHECK(excess / static_cast<double>(compared) < 0.01);
}
