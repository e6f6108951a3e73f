/// What stages cost that compute again or keep states elsewhere, counted by hand.
#include "planner/stage_points.h"

#include "planner/stage_memory.h"
#include "planner/step_costs.h"
#include "tests/support/catch.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Two blocks on one of two devices of a node: 1 GB/s over the link, and of the node's 8 GB/s of
/// memory and its disk's 2 and 1 GB/s one half.
struct Desk {
  ModelSpec model = small_model(4);
  ModelProfile profile = round_profile();
  ClusterSpec cluster = cluster_of({1, 1});
  LayerRange layers{1, 3};
  Desk() {
    profile.block.update.bytes_moved = 7 * profile.block.weight_bytes;
    cluster.nodes[0].host = {64_MiB, 8e9};
    cluster.nodes[0].disk = {256_MiB, 2e9, 1e9};
    for (DeviceSpec& device : cluster.devices) device.host_link = {0, 1e9};
  }
  StagePoint point(const StageChoices& choices, std::uint32_t in_flight = 3) const {
    return StagePoints(model, cluster, profile, DType::f32, {})
        .point(DeviceId{0}, layers, in_flight, 0, choices);
  }
};

constexpr double kib = 1024;

}  // namespace

TEST_CASE("a stage that keeps everything has the times and bytes of any plan") {
  const Desk desk;
  const StagePoint plain = desk.point({});
  const MemoryPlan memory = stage_memory(desk.model, desk.profile, desk.layers, 3, 0);
  CHECK(plain.memory == memory);
  CHECK(plain.host == 0);
  CHECK(plain.disk == 0);
  CHECK(plain.seconds.forward == Approx(2e-3));
  CHECK(plain.seconds.backward_input + plain.seconds.backward_weight == Approx(4e-3));
  CHECK(plain.waits.forward + plain.waits.backward_input + plain.waits.norm + plain.waits.update ==
        0);
  CHECK(plain.choices.plain());
  CHECK(to_text(plain.choices).empty());
}

TEST_CASE("a block that computes again takes a forward more and leaves its output in flight") {
  const Desk desk;
  const StagePoint again = desk.point({{1, 0}});
  CHECK(again.seconds.forward == Approx(2e-3));
  CHECK(again.seconds.backward_input + again.seconds.backward_weight == Approx(5e-3));
  // Of two blocks with 64 KiB one keeps 8; the input of the stage is 8 more.
  CHECK(again.memory.activations == 3 * (64_KiB + 8_KiB + 8_KiB));
  CHECK(again.memory.workspace == 8_KiB + 56_KiB);
  CHECK(to_text(again.choices) == "1 block computes again");
}

TEST_CASE("blocks compute again in full first, then selectively, with the bytes of the plan") {
  Desk desk;
  desk.profile.block.selective = RecomputedLayer{40_KiB, 10_KiB, 12_KiB, {0, 5e5, 0, 0}};
  const StageRecompute mixed{1, 1};
  const StagePoint point = desk.point({mixed});
  CHECK(point.memory == stage_memory(desk.model, desk.profile, desk.layers, 3, 0, mixed));
  const LayerSeconds seconds = stage_seconds(desk.cluster.devices[0], desk.model, desk.profile,
                                             desk.layers, DType::f32, mixed);
  CHECK(point.seconds.backward_input == Approx(seconds.backward_input));
  CHECK(point.seconds.backward_input > desk.point({{1, 0}}).seconds.backward_input);
  CHECK(to_text(point.choices) == "1 block computes again, 1 block computes again selectively");
  CHECK(point.choices.resident());
  CHECK_FALSE(point.choices.plain());
  // Where one selective block is enough, a front has that and no full one.
  const StagePoint kept = desk.point({}), one = desk.point({{0, 1}});
  desk.cluster.devices[0].memory = one.memory.total();
  REQUIRE(kept.memory.total() > one.memory.total());
  const StagePoints points(desk.model, desk.cluster, desk.profile, DType::f32, {true, false});
  const auto front = points.front(DeviceId{0}, desk.layers, 3, 0);
  REQUIRE(front.size() == 1);
  CHECK(front.front().choices.recompute == StageRecompute{0, 1});
}

TEST_CASE(
    "an optimizer on the host: gradients go, new weights come, the host is as slow as its memory") {
  const Desk desk;
  StageChoices choices;
  choices.optimizer = StateTier::host;
  choices.host_update = true;
  const StagePoint moved = desk.point(choices);
  CHECK(moved.memory.optimizer == 0);
  CHECK(moved.host == 2 * 256_KiB);
  // 256 KiB each way at 1 GB/s; 7 x 256 KiB of Adam and both ways through half of 8 GB/s.
  CHECK(moved.seconds.update ==
        Approx(std::max(256 * kib / 1e9, (7 * 256 * kib + 2 * 256 * kib) / 4e9)));
  CHECK(moved.waits.update == moved.seconds.update);
  CHECK(moved.seconds.forward == Approx(2e-3));
  // Through the device instead: 512 KiB each way, and two layers of room.
  choices.host_update = false;
  const StagePoint passed = desk.point(choices);
  CHECK(passed.memory.optimizer == 2 * 256_KiB);
  CHECK(passed.seconds.update == Approx(512 * kib / 1e9));
  CHECK(to_text(passed.choices) == "optimizer in host memory");
}

TEST_CASE("moves of weights, gradients and activations hide behind arithmetic, or are waited for") {
  Desk desk;
  StageChoices choices;
  choices.weights = choices.gradients = choices.activations = StateTier::host;
  const StagePoint hidden = desk.point(choices);
  CHECK(hidden.seconds.forward == Approx(2e-3));
  CHECK(hidden.waits.forward == 0);
  // Two of three microbatches stay, 136 KiB each; two layers of weights are all there are.
  CHECK(hidden.memory.activations == 2 * 136_KiB);
  CHECK(hidden.host == 256_KiB + 256_KiB + 136_KiB);
  for (DeviceSpec& device : desk.cluster.devices) device.host_link.bandwidth = 1e8;
  const StagePoint slow = desk.point(choices);
  // F: weights come, activations go. B: weights and activations come, gradients go.
  CHECK(slow.seconds.forward == Approx(256 * kib / 1e8));
  CHECK(slow.waits.forward == Approx(256 * kib / 1e8 - 2e-3));
  CHECK(slow.seconds.backward_input + slow.seconds.backward_weight ==
        Approx((256 + 136) * kib / 1e8));
}

TEST_CASE("what lies on disk is read and written there, behind buffers in host memory") {
  const Desk desk;
  StageChoices choices;
  choices.optimizer = StateTier::disk;
  choices.host_update = true;
  const StagePoint stored = desk.point(choices);
  CHECK(stored.disk == 2 * 256_KiB);
  CHECK(stored.host == 2 * 256_KiB);  // two layers, which is all
  CHECK(stored.seconds.update == Approx(512 * kib / 1e9 + 512 * kib / 0.5e9));
}

TEST_CASE("shares of a node's memory and disk are equal, and disks need host memory") {
  Desk desk;
  const auto shares = tier_shares(desk.cluster);
  CHECK(shares[0] == shares[1]);
  CHECK(shares[0].host == 32_MiB);
  CHECK(shares[0].disk_read == 1e9);
  CHECK(shares[0].has(StateTier::disk));
  desk.cluster.nodes[0].host.memory = 0;
  CHECK_FALSE(tier_shares(desk.cluster)[0].has(StateTier::disk));
  CHECK_FALSE(tier_shares(desk.cluster)[0].has(StateTier::host));
}
