#include "planner/overflow.h"

#include "planner/strategies.h"
#include "tests/support/catch.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Four stages of three blocks or so, 8 microbatches; stage 0 keeps 4 in flight.
struct Shipped {
  ModelSpec model = small_model(10);
  ModelProfile profile = round_profile();
  ClusterSpec cluster = cluster_of({1, 1, 1, 1});
  PlanOptions options = options_of(8);
  std::vector<StagePlan> stages = stages_of({3, 3, 3, 3});
  PlanRequest request() const { return {model, cluster, profile, options}; }
  Bytes needed(std::size_t device) {
    options.pinned = stages;
    const auto plan = make_plan(model, cluster, profile, options);
    options.pinned.clear();
    return plan->memory[device].total();
  }
};

}  // namespace

TEST_CASE("what fits is not shipped") {
  const Shipped given;
  const auto none = ship_overflow(given.stages, given.request());
  REQUIRE(none);
  CHECK(none->shipments.empty());
  CHECK(none->exposed == 0);
}

TEST_CASE("a stage that is over by a byte ships one microbatch over the quickest link") {
  Shipped given;
  given.cluster.devices[0].memory = given.needed(0) - 1;
  given.cluster.overrides[{0, 1}] = given.cluster.overrides[{1, 0}] = {1e-3, 1e9};
  given.cluster.overrides[{0, 2}] = given.cluster.overrides[{2, 0}] = {5e-6, 1e9};
  given.cluster.overrides[{0, 3}] = given.cluster.overrides[{3, 0}] = {2e-3, 1e9};
  const auto made = ship_overflow(given.stages, given.request());
  REQUIRE(made);
  REQUIRE(made->shipments.size() == 1);
  CHECK(made->shipments[0].stage == 0);
  CHECK(made->shipments[0].to == DeviceId{2});
  CHECK(made->shipments[0].microbatches == 1);
  CHECK(made->shipments[0].bytes == 3 * given.profile.block.saved_bytes);
  CHECK(made->exposed == 0);
  CHECK(to_text(*made, given.stages, given.cluster) == "1 microbatch of dev0 to dev2");
}

TEST_CASE("transfers longer than the slowest stage's microbatch are exposed") {
  Shipped given;
  given.cluster.devices[0].memory = given.needed(0) - 1;
  // 196608 bytes at 1 MB/s are 196.608 ms; a stage of 3 blocks takes 9 ms a microbatch. One of 4
  // microbatches goes: 49.152 ms a microbatch, of which 9 are hidden, 8 times.
  given.cluster.same_process = {0, 1e6};
  const auto made = ship_overflow(given.stages, given.request());
  REQUIRE(made);
  CHECK(made->exposed == Approx(8 * (0.196608 / 4 - 9e-3)));
}

TEST_CASE("without room elsewhere, or with two microbatches left, nothing can be shipped") {
  Shipped given;
  const Bytes needed = given.needed(0);
  const std::vector<Bytes> others{given.needed(1), given.needed(2), given.needed(3)};
  given.cluster.devices[0].memory = needed - 3 * 3 * given.profile.block.saved_bytes;
  CHECK_FALSE(ship_overflow(given.stages, given.request()));  // one of four would stay
  for (std::size_t d = 1; d < 4; ++d) given.cluster.devices[d].memory = others[d - 1] + 1_KiB;
  given.cluster.devices[0].memory = needed - 1;
  CHECK_FALSE(ship_overflow(given.stages, given.request()));
}
