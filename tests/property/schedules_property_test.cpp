/// Any placement, any count of microbatches, any number of slots: every maker's schedule is
/// complete, free of deadlock and within its bounds.
#include <algorithm>
#include <random>

#include "planner/schedules.h"
#include "planner/simulate.h"
#include "tests/support/catch.h"

using namespace troupe;

namespace {

StageMap random_map(std::mt19937& random) {
  const auto pick = [&](std::uint32_t from, std::uint32_t to) {
    return std::uniform_int_distribution<std::uint32_t>(from, to)(random);
  };
  StageMap map;
  map.device_count = pick(1, 5);
  const std::uint32_t stages = pick(1, 9);
  const bool regular = pick(0, 2) == 0;
  for (std::uint32_t s = 0; s < stages; ++s)
    map.device_of_stage.push_back(
        DeviceId{regular ? s % map.device_count : pick(0, map.device_count - 1)});
  map.microbatch_count = pick(1, 13);
  map.transfer_slots = pick(1, 3);
  map.tied = pick(0, 1) == 1;
  return map;
}

}  // namespace

TEST_CASE("L029 every schedule is valid for every placement") {
  for (std::uint32_t seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const StageMap map = random_map(random);
    for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                                    ScheduleKind::interleaved, ScheduleKind::zero_bubble_h1}) {
      INFO("seed " << seed << " " << to_string(kind));
      const auto schedule = make_schedule(kind, map);
      if (!schedule) FAIL(schedule.error().text);
      const auto in_flight = in_flight_per_stage(*schedule);
      const auto depths = pipeline_depths(map);
      for (std::uint32_t s = 0; s < map.stage_count(); ++s) {
        CHECK(in_flight[s] >= 1);
        CHECK(in_flight[s] <= map.microbatch_count);
        if (kind == ScheduleKind::one_f_one_b) CHECK(in_flight[s] <= depths[s]);
        if (kind == ScheduleKind::zero_bubble_h1) CHECK(in_flight[s] <= depths[0]);
      }
      CHECK(parse_schedule(to_text(*schedule), map).value() == *schedule);
    }
  }
}

TEST_CASE("no action starts before its prerequisites end, no lane runs two at once") {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    const StageMap map = random_map(random);
    const auto kind = static_cast<ScheduleKind>(seed % 4);
    INFO("seed " << seed << " " << to_string(kind));
    const Schedule schedule = make_schedule(kind, map).value();
    std::vector<Seconds> cost(64);
    for (Seconds& one : cost) one = std::uniform_int_distribution<int>(0, 9)(random) / 8.0;
    const Timeline timeline = simulate(schedule, [&](const Action& action) {
      return cost[(static_cast<std::size_t>(action.op) * 7 + action.stage.index()) % 64];
    });
    std::vector<std::pair<Action, Seconds>> ends;
    for (const Span& span : timeline.spans) ends.emplace_back(span.action, span.end);
    std::sort(ends.begin(), ends.end());
    std::vector<std::pair<std::string, Seconds>> lanes;
    for (const Span& span : timeline.spans) {
      for (const Action& before : prerequisites(span.action, map, schedule.split_backward)) {
        const auto at = std::lower_bound(ends.begin(), ends.end(), std::pair{before, -1.0});
        REQUIRE(at != ends.end());
        REQUIRE(at->first == before);
        CHECK(at->second <= span.begin);
      }
      auto lane = std::find_if(lanes.begin(), lanes.end(),
                               [&](auto& one) { return one.first == span.lane; });
      if (lane == lanes.end()) lane = lanes.insert(lanes.end(), {span.lane, 0.0});
      CHECK(lane->second <= span.begin);
      lane->second = span.end;
    }
  }
}
