/// Pipelines whose stages compute again or move what does not fit, against all orders, cuts and
/// choices.
#include "planner/chosen_pipeline.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "planner/memory.h"
#include "planner/pipeline_time.h"
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
  if (pick(0, 1) > 0)
    made.profile.block.selective = RecomputedLayer{static_cast<Bytes>(pick(100, 380)) * 1024,
                                                   6 * 1024,
                                                   12 * 1024,
                                                   {0, pick(1, 9) * 1e5, 0, 0}};
  for (LayerProfile* layer : {&made.profile.embedding, &made.profile.block, &made.profile.head})
    layer->update.bytes_moved = 7 * layer->weight_bytes;
  std::vector<double> speeds(static_cast<std::size_t>(pick(1, 3)));
  for (double& speed : speeds) speed = pick(1, 4);
  made.cluster = cluster_of(speeds);
  for (DeviceSpec& device : made.cluster.devices)
    device.memory = Bytes{1024} * static_cast<Bytes>(pick(800, 6000));
  if (pick(0, 2) > 0) {
    made.cluster.nodes[0].host = {Bytes{1024} * static_cast<Bytes>(pick(2000, 9000)), 4e9};
    for (DeviceSpec& device : made.cluster.devices) device.host_link = {1e-6, pick(1, 20) * 1e8};
    if (pick(0, 1) > 0)
      made.cluster.nodes[0].disk = {Bytes{1024} * static_cast<Bytes>(pick(2000, 20000)), 8e8, 4e8};
  }
  made.options = options_of(static_cast<std::uint32_t>(pick(2, 6)));
  return made;
}

/// Everything that a stage may choose, legal or not.
std::vector<StageChoices> all_choices(std::uint32_t blocks) {
  constexpr StateTier tiers[] = {StateTier::device, StateTier::host, StateTier::disk};
  std::vector<StageChoices> all;
  std::vector<StageRecompute> policies;
  for (std::uint32_t full = 0; full <= blocks; ++full)
    for (std::uint32_t selective = 0; full + selective <= blocks; ++selective)
      policies.push_back({full, selective});
  for (const StageRecompute& again : policies)
    for (const StateTier weights : tiers)
      for (const StateTier gradients : tiers)
        for (const StateTier optimizer : tiers)
          for (const StateTier activations : tiers)
            for (const bool host_update : {false, true})
              all.push_back({again, weights, gradients, optimizer, activations, host_update});
  return all;
}

bool legal(const StageChoices& one, const TierShare& share) {
  if (one.host_update && one.optimizer == StateTier::device) return false;
  if (one.activations != StateTier::device && one.recompute.selective > 0) return false;
  for (const StateTier tier : {one.weights, one.gradients, one.optimizer, one.activations})
    if (!share.has(tier)) return false;
  return true;
}

/// The step of given stages with the best choices; infinity where none fits.
Seconds step_of(const Instance& given, const std::vector<StagePlan>& stages) {
  StageMap map;
  map.transfer_slots = given.options.transfer_slots;
  for (const StagePlan& stage : stages) map.device_of_stage.push_back(stage.device);
  StepCosts costs = step_costs(stages, given.cluster, given.model, given.profile, DType::f32);
  const StagePoints points(given.model, given.cluster, given.profile, DType::f32, {});
  const auto shares = tier_shares(given.cluster);
  std::vector<std::vector<LayerSeconds>> fitting(stages.size());
  for (std::uint32_t s = 0; s < stages.size(); ++s) {
    const LayerRange layers = stages[s].layers;
    const std::uint32_t blocks =
        layers.size() - (layers.first == 0) - (layers.last == layer_count(given.model));
    const auto flight = std::min(static_cast<std::uint32_t>(stages.size()) - s,
                                 given.options.shape.microbatch_count);
    const Bytes edges =
        edge_bytes(edge_buffers(StageId{s}, map, given.cluster), given.model, given.profile);
    for (const StageChoices& one : all_choices(blocks)) {
      if (!legal(one, shares[stages[s].device.index()])) continue;
      const StagePoint point = points.point(stages[s].device, layers, flight, edges, one);
      if (!points.fits(stages[s].device, point)) continue;
      const LayerSeconds& own = point.seconds;
      const auto as_quick = [&](const LayerSeconds& other) {
        return other.forward <= own.forward && other.backward_input <= own.backward_input &&
               other.norm <= own.norm && other.update <= own.update;
      };
      if (std::none_of(fitting[s].begin(), fitting[s].end(), as_quick)) fitting[s].push_back(own);
    }
    if (fitting[s].empty()) return std::numeric_limits<Seconds>::infinity();
  }
  Seconds best = std::numeric_limits<Seconds>::infinity();
  const std::function<void(std::size_t)> choose = [&](std::size_t s) {
    if (s == stages.size()) {
      best = std::min(best, one_f_one_b_seconds(costs, given.options.shape.microbatch_count,
                                                given.options.transfer_slots, false));
      return;
    }
    for (const LayerSeconds& one : fitting[s]) {
      costs.stages[s] = one;
      choose(s + 1);
    }
  };
  choose(0);
  return best;
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

TEST_CASE("stages choose what they compute again and where states lie as well as all choices do") {
  std::size_t compared = 0, again = 0, selective = 0, tiers = 0, fit_nowhere = 0;
  for (std::uint32_t seed = 0; seed < 150; ++seed) {
    INFO("seed " << seed);
    const Instance given = random_instance(seed);
    const Seconds best = brute_force(given);
    const auto found =
        choose_pipeline(given.model, given.cluster, given.profile, given.options, {});
    REQUIRE(found.has_value() == std::isfinite(best));
    if (!found) {
      ++fit_nowhere;
      continue;
    }
    ++compared;
    CHECK(found->exact);
    CHECK(found->step == Approx(best).epsilon(1e-9));
    for (const StagePoint& point : found->points) {
      again += point.choices.recompute.none() ? 0 : 1;
      selective += point.choices.recompute.selective > 0 ? 1 : 0;
      tiers += point.host + point.disk > 0 ? 1 : 0;
    }
    CHECK(step_with(*found, given.model, given.cluster, given.profile, given.options,
                    given.options.shape.microbatch_count) == found->step);
  }
  INFO("compared " << compared << ", with recomputation " << again << " (selective " << selective
                   << ")"
                   << ", with tiers " << tiers << ", nowhere " << fit_nowhere);
  CHECK(compared > 80);
  CHECK(again > 15);
  CHECK(selective > 5);
  CHECK(tiers > 30);
  CHECK(fit_nowhere > 5);
}

TEST_CASE("where not everything is tried, chosen pipelines come near the best") {
  std::size_t compared = 0;
  double excess = 0;
  for (std::uint32_t seed = 0; seed < 120; ++seed) {
    INFO("seed " << seed);
    const Instance given = random_instance(seed);
    const auto exact =
        choose_pipeline(given.model, given.cluster, given.profile, given.options, {});
    const auto found =
        propose_pipeline(given.model, given.cluster, given.profile, given.options, {});
    if (!found) continue;
    REQUIRE(exact.has_value());
    ++compared;
    CHECK_FALSE(found->exact);
    CHECK(found->step >= exact->step * (1 - 1e-9));
    excess += found->step / exact->step - 1;
  }
  INFO("compared " << compared << ", excess " << excess);
  CHECK(compared > 80);
  CHECK(excess / static_cast<double>(compared) < 0.02);
}

TEST_CASE("many devices of few kinds are too many orders to look at all of them") {
  Instance given;
  given.model = small_model(24);
  given.profile = round_profile();
  given.cluster = cluster_of({4, 4, 4, 4, 4, 4, 4, 4, 1, 1, 1, 1, 1, 1, 1, 1});
  given.options = options_of(32);
  const auto found = choose_pipeline(given.model, given.cluster, given.profile, given.options, {});
  REQUIRE(found);
  CHECK_FALSE(found->exact);
  CHECK(found->step ==
        propose_pipeline(given.model, given.cluster, given.profile, given.options, {})->step);
}
