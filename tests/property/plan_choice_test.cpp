/// Choices of microbatches and schedule against brute force: every one planned by itself.
#include "planner/plan_choice.h"

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
