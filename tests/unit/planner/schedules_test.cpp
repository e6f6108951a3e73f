#include "planner/schedules.h"

#include "planner/lowering.h"
#include "planner/simulate.h"
#include "tests/support/catch.h"

using namespace troupe;

namespace {

Seconds unit_seconds(const Action& action) {
  switch (action.op) {
    case Op::forward:
    case Op::backward_input:
    case Op::backward_weight: return 1;
    case Op::backward: return 2;
    default: return 0;
  }
}

}  // namespace

TEST_CASE("L006 one forward one backward holds min(stages - stage, microbatches)") {
  for (std::uint32_t p = 1; p <= 6; ++p)
    for (std::uint32_t m = 1; m <= 9; ++m) {
      const auto schedule = make_schedule(ScheduleKind::one_f_one_b, looped_stages(p, m));
      REQUIRE(schedule.ok());
      const auto in_flight = in_flight_per_stage(*schedule);
      for (std::uint32_t s = 0; s < p; ++s) CHECK(in_flight[s] == std::min(p - s, m));
      CHECK(deferred_per_stage(*schedule) == std::vector<std::uint32_t>(p, 0));
    }
}

TEST_CASE("L006 gpipe holds every microbatch on every stage") {
  const auto schedule = make_schedule(ScheduleKind::gpipe, looped_stages(4, 8)).value();
  CHECK(in_flight_per_stage(schedule) == std::vector<std::uint32_t>(4, 8));
}

TEST_CASE("L038 the bubble of 1F1B is (P-1)/(M+P-1), and stage 1 starts at F plus the link") {
  for (const auto& [p, m] : {std::pair{2u, 3u}, {4u, 8u}, {8u, 8u}, {5u, 17u}}) {
    const auto schedule = make_schedule(ScheduleKind::one_f_one_b, looped_stages(p, m)).value();
    const Timeline timeline = simulate(schedule, unit_seconds);
    const double bubble = 1 - timeline.busy("d0") / timeline.makespan();
    CHECK(bubble == Approx((p - 1.0) / (m + p - 1.0)));
  }
  const auto schedule = make_schedule(ScheduleKind::one_f_one_b, looped_stages(2, 2)).value();
  const Timeline timeline = simulate(schedule, [](const Action& action) {
    return action.op == Op::transfer_forward ? 0.25 : unit_seconds(action);
  });
  for (const Span& span : timeline.spans)
    if (span.lane == "d1") {
      CHECK(span.begin == 1.25);
      break;
    }
}

TEST_CASE("L029 L030 every schedule ends for every count of microbatches") {
  for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                                  ScheduleKind::interleaved, ScheduleKind::zero_bubble_h1})
    for (std::uint32_t p = 1; p <= 4; ++p)
      for (std::uint32_t m = 1; m <= 5; ++m) {
        INFO(to_string(kind) << " p=" << p << " m=" << m);
        StageMap map = looped_stages(p, m);
        map.tied = true;
        const auto schedule = make_schedule(kind, map);
        if (!schedule) INFO(schedule.error().text);
        REQUIRE(schedule.ok());
        CHECK(simulate(*schedule, unit_seconds).makespan() >= 3.0 * m);
      }
}

TEST_CASE("several stages on one device run depth first under 1F1B") {
  StageMap map = looped_stages(3, 2);
  map.device_of_stage.assign(3, DeviceId{0});
  map.device_count = 1;
  const auto schedule = make_schedule(ScheduleKind::one_f_one_b, map).value();
  CHECK(to_text(schedule) ==
        "d0: F0.0 F1.0 F2.0 B2.0 B1.0 B0.0 F0.1 F1.1 F2.1 B2.1 B1.1 B0.1 N0 N1 N2 U0 U1 U2\n");
}

TEST_CASE("a split 1F1B hands its gradient on earlier than the fused one") {
  const StageMap map = looped_stages(4, 6);
  const Schedule fused = compute_schedule(ScheduleKind::one_f_one_b, map);
  const Schedule split = add_transfers(split_backward(fused));
  REQUIRE(validate(split).ok());
  CHECK(deferred_per_stage(split) == std::vector<std::uint32_t>(4, 1));
  // The gradient reaches the first stage after 1 instead of 2 units a stage.
  CHECK(simulate(add_transfers(fused), unit_seconds).makespan() == 3 * (6 + 4 - 1));
  CHECK(simulate(split, unit_seconds).makespan() == 3 * (6 + 4 - 1) - (4 - 1));
}

TEST_CASE("tied ends on two devices exchange halves, on one device they do not") {
  StageMap map = looped_stages(2, 1);
  map.tied = true;
  const auto apart = make_schedule(ScheduleKind::one_f_one_b, map).value();
  CHECK(to_text(apart) ==
        "d0: F0.0 B0.0 N0 U0\nd1: F1.0 B1.0 N1 U1\n"
        "d0>d1: XF0.0 XT0\nd1>d0: XB1.0 XT1\n");
  map.device_of_stage = {DeviceId{0}, DeviceId{1}, DeviceId{0}};
  const auto folded = make_schedule(ScheduleKind::one_f_one_b, map).value();
  CHECK(to_text(folded) ==
        "d0: F0.0 F2.0 B2.0 B0.0 N0 N2 U0 U2\nd1: F1.0 B1.0 N1 U1\n"
        "d0>d1: XF0.0 XB2.0\nd1>d0: XF1.0 XB1.0\n");
}

TEST_CASE("an impossible stage map is refused") {
  StageMap map;
  CHECK_FALSE(make_schedule(ScheduleKind::gpipe, map).ok());
  map = looped_stages(2, 0);
  CHECK_FALSE(make_schedule(ScheduleKind::gpipe, map).ok());
  map = looped_stages(2, 1);
  map.transfer_slots = 0;
  CHECK_FALSE(make_schedule(ScheduleKind::gpipe, map).ok());
  map = looped_stages(2, 1);
  map.device_count = 1;
  CHECK_FALSE(make_schedule(ScheduleKind::gpipe, map).ok());
}
