/// Choices of microbatches, schedule and what is computed again against brute force: every one
/// planned by itself.
#include "planner/plan_choice.h"

#include <functional>
#include <limits>
#include <random>

#include "tests/support/catch.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

struct Instance {
  ModelSpec model;
  ClusterSpec cluster;
  PlanOptions options;
  ProfileAt profile_at;
};

Instance random_instance(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto pick = [&](int from, int to) {
    return std::uniform_int_distribution<int>(from, to)(random);
  };
  Instance made;
  const bool tied = pick(0, 1) == 1;
  const double head = pick(0, 30) / 10.0;
  made.model = small_model(static_cast<std::uint32_t>(pick(1, 4)), tied);
  made.profile_at = [tied, head](const StepShape& shape) {
    ModelProfile profile = round_profile(head, tied);
    for (LayerProfile* layer : {&profile.embedding, &profile.block, &profile.head}) {
      for (OpCount* count : {&layer->forward, &layer->backward_input, &layer->backward_weight}) {
        count->matmul_flops *= shape.microbatch_size;
        count->launches = 10;
      }
      layer->saved_bytes *= shape.microbatch_size;
      layer->output_bytes *= shape.microbatch_size;
    }
    return profile;
  };
  std::vector<double> speeds(static_cast<std::size_t>(pick(1, 3)));
  for (double& speed : speeds) speed = pick(1, 4);
  made.cluster = cluster_of(speeds);
  made.cluster.same_process.latency = pick(0, 2000) * 1e-6;
  made.cluster.same_process.bandwidth = pick(0, 1) * 1e7;
  for (DeviceSpec& device : made.cluster.devices) {
    device.memory = Bytes{1024} * static_cast<Bytes>(pick(1500, 9000));
    device.rates.launch = pick(0, 200) * 1e-6;
  }
  made.options = options_of(1, static_cast<ScheduleKind>(pick(0, 3)));
  made.options.shape.batch_size = static_cast<std::uint32_t>(pick(1, 12));
  made.options.shape.microbatch_size = made.options.shape.batch_size;
  made.options.choose_microbatches = pick(0, 3) > 0;
  made.options.choose_schedule = !made.options.choose_microbatches || pick(0, 3) > 0;
  return made;
}

/// The least step over all choices, and the second least.
std::pair<Seconds, Seconds> brute_force(const Instance& given) {
  constexpr Seconds never = std::numeric_limits<Seconds>::infinity();
  std::pair<Seconds, Seconds> best{never, never};
  const std::uint32_t batch = given.options.shape.batch_size;
  for (std::uint32_t count = 1; count <= batch; ++count) {
    PlanOptions options = given.options;
    options.shape.microbatch_count = count;
    options.shape.microbatch_size = (batch + count - 1) / count;
    if ((count - 1) * options.shape.microbatch_size >= batch) continue;  // leaves one empty
    if (!options.choose_microbatches && count > 1) continue;
    for (int kind = 0; kind < 4; ++kind) {
      if (options.choose_schedule) options.schedule = static_cast<ScheduleKind>(kind);
      if (!options.choose_schedule && kind > 0) continue;
      const bool interleaved = options.schedule == ScheduleKind::interleaved;
      const bool several = options.choose_schedule && interleaved;
      for (options.chunks = several ? 2 : 1; options.chunks <= (several ? 4u : 1u);
           ++options.chunks) {
        if (several &&
            (given.cluster.devices.size() < 2 || 2 * options.chunks > layer_count(given.model)))
          continue;
        const auto plan =
            make_plan(given.model, given.cluster, given.profile_at(options.shape), options);
        if (!plan) continue;
        best.second = std::min(best.second, std::max(best.first, plan->predicted_step));
        best.first = std::min(best.first, plan->predicted_step);
      }
    }
  }
  return best;
}

}  // namespace

TEST_CASE("the chosen microbatches and schedule are the quickest of all that fit") {
  std::size_t fitting = 0, cut = 0, other_schedule = 0;
  for (std::uint32_t seed = 0; seed < 150; ++seed) {
    INFO("seed " << seed);
    const Instance given = random_instance(seed);
    const auto [first, second] = brute_force(given);
    const auto plan = choose_plan(given.model, given.cluster, given.profile_at(given.options.shape),
                                  given.options, given.profile_at);
    CHECK(plan.ok() == (first < std::numeric_limits<Seconds>::infinity()));
    if (!plan) {
      CHECK(plan.error().code == ErrorCode::does_not_fit);
      continue;
    }
    ++fitting;
    cut += plan->shape.microbatch_count > 1 ? 1 : 0;
    other_schedule += plan->schedule_kind != given.options.schedule ? 1 : 0;
    CHECK(plan->predicted_step == Approx(first).epsilon(1e-8));
    // The runner-up is the second least, where there are two.
    const auto notes = choice_notes(*plan);
    const bool two = second < std::numeric_limits<Seconds>::infinity();
    REQUIRE(notes.size() == (two ? 2u : 1u));
    if (two) CHECK(notes[1].find(format_seconds(second)) != std::string::npos);
  }
  CHECK(fitting > 50);
  CHECK(fitting < 150);
  CHECK(cut > 20);
  CHECK(other_schedule > 10);
}

TEST_CASE("no plan of a shape is quicker than the least step says") {
  for (std::uint32_t seed = 0; seed < 150; ++seed) {
    INFO("seed " << seed);
    const Instance given = random_instance(seed);
    for (const StepShape& shape : step_shapes(given.options.shape)) {
      PlanOptions options = given.options;
      options.shape = shape;
      options.chunks = 1;
      const ModelProfile profile = given.profile_at(shape);
      const auto plan = make_plan(given.model, given.cluster, profile, options);
      if (plan)
        CHECK(least_step(given.model, given.cluster, profile, shape) <=
              plan->predicted_step * (1 + 1e-9));
    }
  }
}

namespace {

/// The least step of all orders, cuts and policies by stage under the options' schedule.
Seconds least_with_recompute(const Instance& given, const ModelProfile& profile) {
  Seconds least = std::numeric_limits<Seconds>::infinity();
  PlanOptions options = given.options;
  options.choose_recompute = false;
  const std::uint32_t layers = layer_count(given.model);
  const auto devices = static_cast<std::uint32_t>(given.cluster.devices.size());
  const auto price = [&] {
    const auto plan = make_plan(given.model, given.cluster, profile, options);
    if (plan) least = std::min(least, plan->predicted_step);
  };
  const std::function<void(std::size_t)> policies = [&](std::size_t s) {
    if (s == options.pinned.size()) return price();
    StagePlan& stage = options.pinned[s];
    const std::uint32_t blocks = block_count(given.model, stage.layers);
    for (std::uint32_t full = 0; full <= blocks; ++full)
      for (std::uint32_t selective = 0; full + selective <= blocks; ++selective) {
        options.pinned[s].recompute = {full, selective};
        policies(s + 1);
      }
  };
  for (std::uint32_t d = 0; d < devices; ++d) {
    options.pinned = {{{0, layers}, DeviceId{d}}};
    policies(0);
    for (std::uint32_t other = 0; other < devices; ++other)
      for (std::uint32_t cut = 1; cut < layers && other != d; ++cut) {
        options.pinned = {{{0, cut}, DeviceId{d}}, {{cut, layers}, DeviceId{other}}};
        policies(0);
      }
  }
  return least;
}

}  // namespace

TEST_CASE("what is computed again is as little as lets the quickest pipeline fit") {
  std::size_t fitting = 0, again = 0, selective = 0, nowhere = 0;
  for (std::uint32_t seed = 0; seed < 160; ++seed) {
    INFO("seed " << seed);
    Instance given = random_instance(seed);
    std::mt19937 engine(seed);
    const auto pick = [&](std::uint32_t from, std::uint32_t to) {
      return from + static_cast<std::uint32_t>(engine() % (to - from + 1));
    };
    given.cluster.devices.resize(std::min<std::size_t>(given.cluster.devices.size(), 2));
    given.options.choose_microbatches = given.options.choose_schedule = false;
    given.options.choose_recompute = true;
    given.options.schedule = ScheduleKind::one_f_one_b;
    given.options.shape.microbatch_count = pick(1, 5);
    given.options.shape.microbatch_size = 2;
    given.options.shape.batch_size = 2 * given.options.shape.microbatch_count;
    for (DeviceSpec& device : given.cluster.devices) device.memory = Bytes{1024} * pick(1500, 4000);
    ModelProfile profile = given.profile_at(given.options.shape);
    profile.block.saved_bytes = 300 * 1024;
    if (pick(0, 1) > 0)
      profile.block.selective = RecomputedLayer{
          Bytes{1024} * pick(50, 250), 6 * 1024, 12 * 1024, {0, pick(1, 9) * 1e5, 0, 0}};
    const Seconds least = least_with_recompute(given, profile);
    const auto plan =
        choose_plan(given.model, given.cluster, profile, given.options, given.profile_at);
    CHECK(plan.ok() == (least < std::numeric_limits<Seconds>::infinity()));
    if (!plan) {
      CHECK(plan.error().code == ErrorCode::does_not_fit);
      ++nowhere;
      continue;
    }
    ++fitting;
    CHECK(plan->predicted_step == Approx(least).epsilon(1e-8));
    for (const StagePlan& stage : plan->stages) {
      again += stage.recompute.none() ? 0 : 1;
      selective += stage.recompute.selective > 0 ? 1 : 0;
    }
    // The settled options make the same plan again.
    const auto same = choose_plan(given.model, given.cluster, profile,
                                  settled(given.options, *plan), given.profile_at);
    REQUIRE(same.ok());
    CHECK(same->predicted_step == plan->predicted_step);
  }
  INFO("fitting " << fitting << ", nowhere " << nowhere << ", again " << again << ", selective "
                  << selective);
  CHECK(fitting > 60);
  CHECK(nowhere > 5);
  CHECK(again > 30);
  CHECK(selective > 10);
}
