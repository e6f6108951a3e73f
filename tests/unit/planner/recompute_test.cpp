/// Policies of recomputation as values, and plans that hold them.
#include "planner/recompute.h"

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("a policy has a name, and an unknown one is answered with those there are") {
  for (const Recompute policy : {Recompute::none, Recompute::selective, Recompute::full})
    CHECK(*parse_recompute(to_string(policy)) == policy);
  const auto unknown = parse_recompute("half");
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.error().text ==
        "there is no recomputation \"half\"; there are none, selective, full");
}

TEST_CASE("the first blocks of a stage compute all again, the next ones what is cheap") {
  const ModelSpec model = small_model(6);
  const StageRecompute some{2, 1};
  CHECK(to_text(some) == "2 full, 1 selective");
  CHECK(to_text(StageRecompute{}) == "none");
  // Layers 0 (embedding) to 7 (head); the stage's first block is layer 3, or layer 1.
  const auto of = [&](LayerRange layers, std::uint32_t layer) {
    return recompute_of(some, model, layers, layer);
  };
  CHECK(of({3, 8}, 3) == Recompute::full);
  CHECK(of({3, 8}, 5) == Recompute::selective);
  CHECK(of({3, 8}, 6) == Recompute::none);
  CHECK(of({3, 8}, 7) == Recompute::none);
  CHECK(of({0, 4}, 0) == Recompute::none);
  CHECK(of({0, 4}, 1) == Recompute::full);
  CHECK(of({0, 4}, 3) == Recompute::selective);
  CHECK(block_count(model, {0, 8}) == 6);
  CHECK(block_count(model, {7, 8}) == 0);
  CHECK(recompute_all(model, {3, 8}, Recompute::full) == StageRecompute{4, 0});
  CHECK(recompute_all(model, {0, 2}, Recompute::selective) == StageRecompute{0, 1});
  CHECK(recompute_all(model, {0, 2}, Recompute::none).none());
}

TEST_CASE("a plan with recomputation takes less memory and a forward more, and comes back") {
  const ModelSpec model = small_model(6);
  const ClusterSpec cluster = cluster_of({1, 1});
  PlanOptions options = options_of(4);
  const Plan kept = make_plan(model, cluster, round_profile(), options).value();
  options.recompute = Recompute::full;
  const Plan again = make_plan(model, cluster, round_profile(), options).value();
  CHECK(again.predicted_step > kept.predicted_step);
  for (std::size_t d = 0; d < 2; ++d)
    CHECK(again.memory[d].activations < kept.memory[d].activations);
  for (const StagePlan& stage : again.stages)
    CHECK(stage.recompute == recompute_all(model, stage.layers, Recompute::full));
  const std::string text = to_json(again, cluster);
  CHECK(*plan_from_json(text) == again);
  CHECK(to_json(kept, cluster).find("recompute") == std::string::npos);
  auto damaged = nlohmann::json::parse(text);
  damaged["stages"][0]["recompute"]["full"] = 9;
  const auto refused = plan_from_json(damaged.dump());
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().text.find("stages[0].recompute is 9 full of ") != std::string::npos);
}

TEST_CASE("what cannot compute again is refused by name") {
  const ModelSpec model = small_model(6);
  const ClusterSpec cluster = cluster_of({1, 1});
  PlanOptions options = options_of(4, ScheduleKind::zero_bubble_h1);
  options.recompute = Recompute::selective;
  const auto split = make_plan(model, cluster, round_profile(), options);
  REQUIRE_FALSE(split.ok());
  CHECK(split.error().text.find("schedule = \"1f1b\", or recompute = \"none\"") !=
        std::string::npos);
  options = options_of(4);
  options.pinned = stages_of({4, 4});
  options.pinned[1].recompute = {3, 1};
  const auto many = make_plan(model, cluster, round_profile(), options);
  REQUIRE_FALSE(many.ok());
  CHECK(many.error().text.find("stage 1 computes 4 blocks again and holds 3 blocks") !=
        std::string::npos);
}
