#include "planner/idle.h"

#include <random>

#include "planner/schedule_families.h"
#include "planner/schedules.h"
#include "planner/simulate.h"
#include "tests/support/catch.h"

using namespace troupe;

namespace {

/// F 1, B 2, I 1, W 1, transfers as told, N and U nothing.
ActionSeconds unit_seconds(Seconds transfer) {
  return [transfer](const Action& action) -> Seconds {
    switch (action.op) {
      case Op::forward:
      case Op::backward_input:
      case Op::backward_weight: return 1;
      case Op::backward: return 2;
      case Op::norm:
      case Op::update: return 0;
      default: return transfer;
    }
  };
}

std::vector<DeviceUse> use_of(ScheduleKind kind,
                              std::uint32_t devices,
                              std::uint32_t microbatches,
                              Seconds transfer) {
  StageMap map = looped_stages(devices, microbatches);
  map.transfer_slots = microbatches;
  const Schedule schedule = make_schedule(kind, map).value();
  return device_use(schedule, simulate(schedule, unit_seconds(transfer)));
}

}  // namespace

TEST_CASE("L038 idle reasons of 1F1B, by hand") {
  // Device s of p = 4, m = 6, f = 1, b = 2, free links: it starts after s forwards; between its
  // last warm-up forward and its last backward it waits p - 1 - s times for a forward and a
  // backward of the devices after it; after its own last backward, s backwards end the step.
  const auto use = use_of(ScheduleKind::one_f_one_b, 4, 6, 0);
  for (std::uint32_t s = 0; s < 4; ++s) {
    CHECK(use[s].busy == 6 * 3);
    CHECK(use[s].idle_for(IdleReason::fill) == s);
    CHECK(use[s].idle_for(IdleReason::stage_after) + use[s].idle_for(IdleReason::stage_before) ==
          3 * (3 - s));
    CHECK(use[s].idle_for(IdleReason::drain) == 2 * s);
    CHECK(use[s].idle_for(IdleReason::link) == 0);
    CHECK(use[s].idle_sum() == 3 * 3);  // (p - 1) (f + b)
  }
  CHECK(use[0].idle_for(IdleReason::stage_before) == 0);
  CHECK(use[3].idle_for(IdleReason::stage_after) == 0);
}

TEST_CASE("idle reasons of GPipe with links that take time, by hand") {
  // Device s of p = 3, m = 4, f = 1, b = 2, transfers of 0.25 (never longer than an action, so that
  // links do not queue): s forwards and s transfers before it starts; p - 1 - s of each, there and
  // back, between its last forward and its first backward; s backwards and transfers at the end.
  const auto use = use_of(ScheduleKind::gpipe, 3, 4, 0.25);
  for (std::uint32_t s = 0; s < 3; ++s) {
    const double after = 2 - s;
    CHECK(use[s].idle_for(IdleReason::fill) == s * 1.25);
    CHECK(use[s].idle_for(IdleReason::stage_after) == after * 3);
    CHECK(use[s].idle_for(IdleReason::stage_before) == 0);
    CHECK(use[s].idle_for(IdleReason::link) == after * 0.5);
    CHECK(use[s].idle_for(IdleReason::drain) == s * 2.25);
    CHECK(use[s].idle_for(IdleReason::nothing) == 0);
    CHECK(use[s].exposed == 2 * 2 * 0.25);  // there and back over both links, wherever one stands
  }
}

TEST_CASE("a link that is slower than the stages is what they wait for") {
  // Two devices, 8 microbatches under GPipe, transfers of 4: the second device has F every 4 s.
  const auto use = use_of(ScheduleKind::gpipe, 2, 8, 4);
  CHECK(use[1].idle_for(IdleReason::fill) == 1 + 4);
  CHECK(use[1].idle_for(IdleReason::link) == 7 * 3);
  CHECK(use[1].idle_for(IdleReason::stage_before) == 0);
}

TEST_CASE("a device without work has nothing to do; one that outlasts the others neither") {
  StageMap map = looped_stages(1, 2);
  map.device_count = 2;
  const Schedule schedule = make_schedule(ScheduleKind::gpipe, map).value();
  const auto use = device_use(schedule, simulate(schedule, unit_seconds(0)));
  CHECK(use[1].busy == 0);
  CHECK(use[1].idle_for(IdleReason::nothing) == 6);
  CHECK(bubble_share(schedule, use) == 0);  // of the devices that have work
}

TEST_CASE("a played timeline with pauses of its own: the runtime's part") {
  const Schedule schedule = make_schedule(ScheduleKind::gpipe, looped_stages(1, 2)).value();
  Timeline timeline;
  Seconds at = 0;
  for (const Action& action : schedule.devices[0]) {
    timeline.spans.push_back({action, "d0", at, at + 1});
    at += 1.5;
  }
  const auto use = device_use(schedule, timeline);
  CHECK(use[0].busy == 6);
  CHECK(use[0].idle_for(IdleReason::runtime) + use[0].idle_for(IdleReason::drain) == 5 * 0.5);
  CHECK(use[0].idle_for(IdleReason::runtime) == 3 * 0.5);
}

TEST_CASE("busy and idle by reason add up to the step, for every lane of random schedules") {
  const std::uint32_t base = std::random_device{}();
  for (std::uint32_t i = 0; i < 150; ++i) {
    const std::uint32_t seed = base + i;
    std::mt19937 random(seed);
    const auto pick = [&](std::uint32_t from, std::uint32_t to) {
      return std::uniform_int_distribution<std::uint32_t>(from, to)(random);
    };
    StageMap map;
    map.device_count = pick(1, 5);
    for (std::uint32_t s = pick(1, 9); s > 0; --s)
      map.device_of_stage.push_back(DeviceId{pick(0, map.device_count - 1)});
    map.microbatch_count = pick(1, 9);
    map.transfer_slots = pick(1, 3);
    map.tied = pick(0, 1) == 1;
    const auto kind = static_cast<ScheduleKind>(pick(0, 3));
    INFO("seed " << seed << " " << to_string(kind));
    const Schedule schedule = make_schedule(kind, map).value();
    std::vector<Seconds> cost(97);
    for (Seconds& one : cost) one = pick(0, 32) / 8.0;
    const Timeline timeline = simulate(schedule, [&](const Action& action) {
      return cost[(static_cast<std::size_t>(action.op) * 13 + action.stage.index() * 5 +
                   action.microbatch.index()) %
                  97];
    });
    const auto use = device_use(schedule, timeline);
    for (std::uint32_t d = 0; d < map.device_count; ++d) {
      INFO("d" << d);
      CHECK(use[d].busy == timeline.busy("d" + std::to_string(d)));
      CHECK(use[d].busy + use[d].idle_sum() == timeline.makespan());  // eighths: exact
      CHECK(use[d].idle_for(IdleReason::runtime) == 0);
      CHECK(use[d].idle_for(IdleReason::hang) == 0);
      CHECK(use[d].exposed <= use[d].idle_sum());
      CHECK(use[d].exposed >= use[d].idle_for(IdleReason::link));
      for (const Seconds idle : use[d].idle) CHECK(idle >= 0);
      if (schedule.devices[d].empty())
        CHECK(use[d].idle_for(IdleReason::nothing) == timeline.makespan());
    }
  }
}

TEST_CASE("the same for the published families") {
  for (std::size_t f = 0; f < schedule_family_count; ++f) {
    const auto family = static_cast<ScheduleFamily>(f);
    const Schedule schedule = make_schedule(family, {4, 8, 8}).value();
    const Timeline timeline = simulate(schedule, unit_seconds(0.5));
    INFO(to_string(family));
    for (const DeviceUse& use : device_use(schedule, timeline)) {
      CHECK(use.busy + use.idle_sum() == timeline.makespan());
      CHECK(use.idle_for(IdleReason::runtime) == 0);
    }
  }
}
