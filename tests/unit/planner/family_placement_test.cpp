#include "planner/family_placement.h"

#include <algorithm>

#include "planner/idle.h"
#include "tests/support/catch.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

struct Planned {
  ClusterSpec cluster;
  ModelProfile profile;
  Plan plan;
};

Planned planned(const std::vector<double>& speeds, std::uint32_t blocks, bool tied = false) {
  Planned out{cluster_of(speeds), round_profile(1.0, tied), {}};
  out.plan = make_plan(small_model(blocks, tied), out.cluster, out.profile, options_of(8)).value();
  return out;
}

Seconds step_of(const FamilyStep& step, const Planned& at) {
  return simulated_seconds(
      step.schedule, family_costs(step.stages, step.schedule, at.plan, at.cluster, at.profile));
}

}  // namespace

TEST_CASE("1f1b-flush is the order that is trained: the plan's own step and memory") {
  for (const bool tied : {false, true}) {
    const Planned at = planned({1, 2, 1, 3}, 10, tied);
    REQUIRE(at.plan.unused.empty());
    const FamilyStep step =
        place_family(ScheduleFamily::pipedream_flush, at.plan, at.cluster, at.profile).value();
    CHECK(step.stages == at.plan.stages);  // the optimum: no layer moves
    CHECK(step.memory == at.plan.memory);
    CHECK(step_of(step, at) == at.plan.predicted_step);
  }
}

TEST_CASE("every family holds every layer once in each direction, and its step ends") {
  const Planned at = planned({1, 2, 1, 3}, 10, true);
  REQUIRE(at.plan.unused.empty());
  for (std::size_t f = 0; f < schedule_family_count; ++f) {
    const auto family = static_cast<ScheduleFamily>(f);
    INFO(to_string(family));
    const FamilyStep step = place_family(family, at.plan, at.cluster, at.profile).value();
    const StageMap& map = step.schedule.stages;
    REQUIRE(step.stages.size() == map.stage_count());
    for (std::uint32_t s = 0; s < map.stage_count(); ++s) {
      CHECK(step.stages[s].device == map.device_of_stage[s]);
      CHECK(step.stages[s].layers.size() >= 1);
      if (map.starts_chain(s)) CHECK(step.stages[s].layers.first == 0);
      if (map.ends_chain(s)) CHECK(step.stages[s].layers.last == layer_count(at.plan.model));
      if (!map.starts_chain(s))
        CHECK(step.stages[s].layers.first == step.stages[s - 1].layers.last);
    }
    CHECK(step_of(step, at) > 0);
    CHECK(step.memory.size() == 4);
  }
}

TEST_CASE("2bw holds two versions of the weights") {
  const Planned at = planned({1, 1, 1}, 7);
  const FamilyStep flush =
      place_family(ScheduleFamily::pipedream_flush, at.plan, at.cluster, at.profile).value();
  const FamilyStep step =
      place_family(ScheduleFamily::pipedream_2bw, at.plan, at.cluster, at.profile).value();
  CHECK(step.updates == 4);
  const auto once = memory_of(step.stages, step.schedule, at.cluster, at.plan.model, at.profile);
  for (std::size_t d = 0; d < 3; ++d) {
    CHECK(once[d].weights > 0);
    CHECK(step.memory[d].weights == 2 * once[d].weights);
  }
  // Without a flush the bubble is paid once for four updates.
  CHECK(step_of(step, at) / 4 < step_of(flush, at));
}

TEST_CASE("layers move from devices that are short of memory") {
  Planned at = planned({1, 1, 1, 1}, 10);
  const FamilyStep roomy =
      place_family(ScheduleFamily::zero_bubble_2p, at.plan, at.cluster, at.profile).value();
  at.cluster.devices[0].memory = roomy.memory[0].total() - 1;
  const FamilyStep tight =
      place_family(ScheduleFamily::zero_bubble_2p, at.plan, at.cluster, at.profile).value();
  CHECK(tight.memory[0].total() <= at.cluster.devices[0].memory);
}

TEST_CASE("what a family cannot be is refused by name") {
  const Planned odd = planned({1, 1, 1}, 7);
  const auto chimera = place_family(ScheduleFamily::chimera, odd.plan, odd.cluster, odd.profile);
  REQUIRE_FALSE(chimera.ok());
  CHECK(chimera.error().text.find("\"chimera\"") != std::string::npos);
  const Planned few = planned({1, 1, 1}, 2);
  const auto folded =
      place_family(ScheduleFamily::zero_bubble_v, few.plan, few.cluster, few.profile);
  REQUIRE_FALSE(folded.ok());
  CHECK(folded.error().text.find("6 stages, more than the model's 4 layers") != std::string::npos);
}
