#include <nlohmann/json.hpp>

#include "planner/plan.h"
#include "tests/support/catch.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;

namespace {

Plan some_plan(ScheduleKind kind = ScheduleKind::zero_bubble_h1) {
  ClusterSpec cluster = cluster_of({1, 2, 3});
  PlanOptions options = options_of(3, kind);
  options.chunks = 2;
  return make_plan(small_model(6, true), cluster, round_profile(1.0, true), options).value();
}

}  // namespace

TEST_CASE("a plan comes back from its JSON as it was") {
  for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                                  ScheduleKind::interleaved, ScheduleKind::zero_bubble_h1}) {
    Plan plan = some_plan(kind);
    plan.epoch.value = 7;
    const auto back = plan_from_json(to_json(plan, cluster_of({1, 2, 3})));
    if (!back) FAIL(back.error().text);
    CHECK(*back == plan);
  }
}

TEST_CASE("a damaged plan is refused by name") {
  const json good = json::parse(to_json(some_plan(), cluster_of({1, 2, 3})));
  const auto refused = [&](auto change) {
    json bad = good;
    change(bad);
    const auto plan = plan_from_json(bad.dump());
    REQUIRE_FALSE(plan.ok());
    CHECK(plan.error().code == ErrorCode::corrupt);
    return plan.error().text;
  };
  CHECK(refused([](json& j) { j["extra"] = 1; }) == "plan.json: plan.extra is not a known key");
  CHECK(refused([](json& j) { j.erase("epoch"); }) == "plan.json: plan.epoch is missing");
  CHECK(refused([](json& j) { j["epoch"] = -1; }) ==
        "plan.json: plan.epoch is not a whole number from 0");
  CHECK(refused([](json& j) {
          j["format"] = 1;
          j["notes"] = {"binding: dev0"};
        }) ==
        "plan.json: plan.format is 1, this program reads 2; make the plan again, with troupe "
        "plan CONF --json");
  CHECK(refused([](json& j) { j["notes"][0] = "binding: dev0"; }).find("notes[0]") !=
        std::string::npos);
  CHECK(refused([](json& j) { j["notes"][0]["kind"] = "bindin"; }) ==
        "plan.json: notes[0].kind is \"bindin\", which is no kind of note");
  CHECK(refused([](json& j) { j["model"]["heads"] = 5; }).find("does not divide") !=
        std::string::npos);
  CHECK(refused([](json& j) { j["shape"]["compute"] = "f16"; }).find("shape.compute") !=
        std::string::npos);
  CHECK(refused([](json& j) { j["stages"][0]["end_layer"] = 0; }).find("stages[0]") !=
        std::string::npos);
  CHECK(refused([](json& j) { j["stages"].erase(0); }).find("stages[0]") != std::string::npos);
  CHECK(refused([](json& j) { j["stages"][0]["device"] = 99; }).find("99 of 3") !=
        std::string::npos);
  CHECK(refused([](json& j) { j["schedule"].erase(0); }).find("schedule") != std::string::npos);
  CHECK(refused([](json& j) { j["schedule"][0] = "d0: F0.99"; }).find("microbatches") !=
        std::string::npos);
  CHECK(refused([](json& j) { j["in_flight"][0] = 77; }).find("in_flight") != std::string::npos);
  CHECK(refused([](json& j) { j["unused"].push_back(0); }).find("unused") != std::string::npos);
  CHECK(refused([](json& j) { j["transfer_slots"] = 0; }).find("transfer_slots") !=
        std::string::npos);
  CHECK(refused([](json& j) { j["devices"][0]["weights"] = "many"; }).find("weights") !=
        std::string::npos);
  CHECK_FALSE(plan_from_json("").ok());
  CHECK_FALSE(plan_from_json("[]").ok());
  CHECK_FALSE(plan_from_json(std::string(100000, '[')).ok());
}
