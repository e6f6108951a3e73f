/// The recurrence of 1F1B against the simulator, on random pipelines.
#include "planner/pipeline_time.h"

#include <random>

#include "planner/partition.h"
#include "planner/schedules.h"
#include "planner/step_costs.h"
#include "tests/support/catch.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("the recurrence of 1F1B is what the simulator says") {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto pick = [&](int from, int to) {
      return std::uniform_int_distribution<int>(from, to)(random);
    };
    std::vector<double> speeds(static_cast<std::size_t>(pick(1, 9)));
    std::vector<std::uint32_t> sizes(speeds.size());
    std::uint32_t layers = 0;
    for (std::size_t s = 0; s < sizes.size(); ++s) {
      speeds[s] = pick(1, 8);
      sizes[s] = static_cast<std::uint32_t>(pick(1, 3)) + (sizes.size() == 1 ? 1 : 0);
      layers += sizes[s];
    }
    if (layers < 3) continue;
    const bool tied = pick(0, 1) == 1;
    const ModelSpec model = small_model(layers - 2, tied);
    const ModelProfile profile = round_profile(pick(1, 30) / 10.0, tied);
    ClusterSpec cluster = cluster_of(speeds);
    cluster.same_process.latency = pick(0, 3000) * 1e-6;
    cluster.overrides[{0, 1}] = {pick(0, 9000) * 1e-6, 0};
    PlanOptions options = options_of(static_cast<std::uint32_t>(pick(1, 20)));
    options.transfer_slots = static_cast<std::uint32_t>(pick(1, 3));
    const auto stages = stages_of(sizes);
    const StepCosts costs = step_costs(stages, cluster, model, profile, DType::f32);
    const auto schedule =
        make_schedule(options.schedule, stage_map_of(stages, cluster, model, options));
    REQUIRE(schedule.ok());
    CHECK(one_f_one_b_seconds(costs, options.shape.microbatch_count, options.transfer_slots,
                              tied) == Approx(simulated_seconds(*schedule, costs)).epsilon(1e-9));
  }
}
