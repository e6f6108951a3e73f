/// Simulated schedules: validity for every shape, and the published formulas of
/// pipeline_schedule_formulas.csv that are exact. Not exact, or not defined by that table: V-Half
/// and V-Min (rows 5 and 6: no order given, and "O(n) overhead"), DualPipe's bubble (row 9: counts
/// a forward and a backward that run overlapped; in a row they need at most that), DualPipeV (row
/// 10), the vocabulary schedules (rows 11 to 14: passes of vocabulary layers), GEMS, PipeDream and
/// 2BW's bubble (rows 17 to 19: "about").
#include "planner/schedule_families.h"

#include <algorithm>
#include <random>

#include "planner/schedule_measures.h"
#include "planner/schedules.h"
#include "planner/simulate.h"
#include "tests/support/catch.h"

using namespace troupe;

namespace {

struct Times {
  double forward = 1, input = 1, weight = 1;
};

Timeline timed(const Schedule& schedule, Times times = {}) {
  return simulate(schedule, [=](const Action& action) {
    switch (action.op) {
      case Op::forward: return times.forward;
      case Op::backward: return times.input + times.weight;
      case Op::backward_input: return times.input;
      case Op::backward_weight: return times.weight;
      default: return 0.0;
    }
  });
}

/// Of the busiest device's span; all devices are equally busy here.
Seconds bubble(const Schedule& schedule, Times times = {}) {
  const Timeline timeline = timed(schedule, times);
  return longest_device_span(timeline) - timeline.busy("d0");
}

Schedule made(ScheduleFamily family, const FamilyShape& shape) {
  auto schedule = make_schedule(family, shape);
  if (!schedule) FAIL(schedule.error().text);
  return std::move(*schedule);
}

Schedule executed(ScheduleKind kind, std::uint32_t p, std::uint32_t m) {
  return make_schedule(kind, family_stages(ScheduleFamily::pipedream_flush, {p, m, 1})).value();
}

std::size_t transfers(const Schedule& schedule) {
  std::size_t count = 0;
  for (const LinkLane& link : schedule.links) count += link.actions.size();
  return count;
}

using Counts = std::vector<std::uint32_t>;

}  // namespace

TEST_CASE("every family is valid for every shape that it does not refuse") {
  std::size_t made_count = 0;
  for (std::uint32_t seed = 0; seed < 120; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](std::uint32_t from, std::uint32_t to) {
      return std::uniform_int_distribution<std::uint32_t>(from, to)(random);
    };
    const FamilyShape shape{pick(0, 6), pick(0, 16), pick(0, 9)};
    for (std::size_t i = 0; i < schedule_family_count; ++i) {
      const auto family = static_cast<ScheduleFamily>(i);
      if ((family == ScheduleFamily::zero_bubble_1p || family == ScheduleFamily::zero_bubble_2p) &&
          seed >= 25)
        continue;  // a search each
      INFO("seed " << seed << " " << to_string(family) << " p=" << shape.devices
                   << " m=" << shape.microbatches << " loops=" << shape.loops);
      const auto schedule = make_schedule(family, shape);
      if (!schedule) {
        CHECK(schedule.error().text.find(to_string(family)) != std::string::npos);
        continue;
      }
      ++made_count;
      CHECK(parse_schedule(to_text(*schedule), schedule->stages).value() == *schedule);
      const std::uint32_t p = shape.devices;
      for (const std::uint32_t most : in_flight_per_device(*schedule)) {
        if (family == ScheduleFamily::pipedream_flush || family == ScheduleFamily::zero_bubble_1p ||
            family == ScheduleFamily::chimera)
          CHECK(most <= p);
        if (family == ScheduleFamily::zero_bubble_h2) CHECK(most <= 2 * p - 1);
        if (family == ScheduleFamily::zero_bubble_2p || family == ScheduleFamily::zero_bubble_v)
          CHECK(most <= 2 * p);
        if (family == ScheduleFamily::dualpipe) CHECK(most <= p + 1);
      }
      CHECK(timed(*schedule).makespan() >= timed(*schedule).busy("d0"));
    }
  }
  CHECK(made_count > 400);
}

TEST_CASE("names of simulated schedules are read back, others are not") {
  for (std::size_t i = 0; i < schedule_family_count; ++i) {
    const auto family = static_cast<ScheduleFamily>(i);
    CHECK(parse_schedule_family(to_string(family)).value() == family);
  }
  CHECK_FALSE(parse_schedule_family("zb-3p").ok());
  // What executes says why it refuses them.
  const auto refused = parse_schedule_kind("zb-v");
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().text.find("\"zb-v\" can be simulated, not yet executed") == 0);
}

TEST_CASE("impossible shapes are refused by name") {
  CHECK_FALSE(make_schedule(ScheduleFamily::chimera, {3, 3, 1}).ok());
  CHECK_FALSE(make_schedule(ScheduleFamily::chimera, {4, 6, 1}).ok());
  CHECK_FALSE(make_schedule(ScheduleFamily::dualpipe, {4, 6, 1}).ok());
  CHECK_FALSE(make_schedule(ScheduleFamily::dualpipe, {3, 12, 1}).ok());
  CHECK_FALSE(make_schedule(ScheduleFamily::layered, {4, 4, 3}).ok());
  CHECK_FALSE(make_schedule(ScheduleFamily::zero_bubble_v, {0, 4, 1}).ok());
}

TEST_CASE("formulas of 1F1B, ZB-H1 and ZB-2p: rows 1, 2, 3, 7, 8, 15, 16") {
  for (const auto& [p, m] : {std::pair{2u, 4u}, {4u, 16u}, {6u, 18u}, {8u, 24u}}) {
    INFO("p=" << p << " m=" << m);
    const Schedule fused = executed(ScheduleKind::one_f_one_b, p, m);
    const Schedule fill = executed(ScheduleKind::gpipe, p, m);
    const Schedule h1 = executed(ScheduleKind::zero_bubble_h1, p, m);
    for (const Schedule* schedule : {&fused, &fill})
      CHECK(bubble(*schedule) / longest_device_span(timed(*schedule)) ==
            Approx((p - 1.0) / (m + p - 1.0)));
    CHECK(bubble(h1) == Approx(bubble(fused) / 3));
    for (const Times& t : {Times{1, 1, 1}, Times{3, 4, 2}, Times{2, 3, 1}}) {
      const double full = t.input + t.weight;
      CHECK(bubble(fused, t) == Approx((p - 1) * (t.forward + full)));
      CHECK(bubble(h1, t) == Approx((p - 1) * (t.forward + full - 2 * t.weight)));
    }
    for (std::uint32_t s = 0; s < p; ++s) CHECK(in_flight_per_stage(fused)[s] == p - s);
    CHECK(in_flight_per_stage(fill) == Counts(p, m));
    CHECK(in_flight_per_stage(h1) == Counts(p, p));
    const Schedule h2 = made(ScheduleFamily::zero_bubble_h2, {p, m, 1});
    const Schedule found = made(ScheduleFamily::zero_bubble_2p, {p, m, 1});
    CHECK(bubble(h2) == Approx(0).margin(1e-9));
    CHECK(bubble(found) == Approx(0).margin(1e-9));
    CHECK(bubble(made(ScheduleFamily::zero_bubble_1p, {p, m, 1})) <= bubble(h1) + 1e-9);
  }
}

TEST_CASE("formulas of ZB-V, row 4: no bubble, memory of 1F1B, twice its transfers") {
  for (const auto& [p, m] : {std::pair{2u, 3u}, {3u, 6u}, {4u, 7u}, {8u, 32u}}) {
    const Schedule schedule = made(ScheduleFamily::zero_bubble_v, {p, m, 1});
    CHECK(bubble(schedule) == Approx(0).margin(1e-9));
    CHECK(in_flight_per_device(schedule) == Counts(p, 2 * p));  // halves of p microbatches
    CHECK(transfers(schedule) == 2 * transfers(executed(ScheduleKind::one_f_one_b, p, m)));
  }
}

TEST_CASE("DualPipe, row 9: PP + 1 microbatches, two stages a device, at most its bubble") {
  for (const std::uint32_t p : {4u, 6u, 8u, 16u}) {
    const Schedule schedule = made(ScheduleFamily::dualpipe, {p, 4 * p, 1});
    const auto most = in_flight_per_device(schedule);
    CHECK(most == Counts(p, p + 1));
    CHECK(schedule.stages.stage_count() == 2 * p);
    for (const Times& t : {Times{1, 1, 1}, Times{3, 4, 2}, Times{2, 3, 1}}) {
      const double full = t.input + t.weight;
      const double pair = t.forward + full;
      CHECK(bubble(schedule, t) <= (p / 2 - 1) * (pair + full - 3 * t.weight) + 1e-9);
      CHECK(bubble(schedule, t) > 0);
    }
  }
}

TEST_CASE("formulas of Chimera, row 20: bubble and microbatches in flight") {
  for (const std::uint32_t p : {2u, 4u, 6u, 8u, 16u}) {
    const Schedule one = made(ScheduleFamily::chimera, {p, p, 1});
    // One group, backward as long as forward: (D-2)/(2N+D-2).
    CHECK(bubble(one, {1, 0.5, 0.5}) / longest_device_span(timed(one, {1, 0.5, 0.5})) ==
          Approx((p - 2.0) / (2.0 * p + p - 2.0)));
    // Backward twice as long: (D-2)/(3N/2+D-2), the same paper.
    CHECK(bubble(one) / longest_device_span(timed(one)) == Approx((p - 2.0) / (1.5 * p + p - 2.0)));
    const auto in_flight = in_flight_per_device(one);
    CHECK(*std::min_element(in_flight.begin(), in_flight.end()) == p / 2 + 1);
    CHECK(*std::max_element(in_flight.begin(), in_flight.end()) == p);
    CHECK(one.stages.stage_count() == 2 * p);
  }
}

TEST_CASE("breadth-first and layered: the bubble of 1F1B over the number of loops") {
  for (const auto& [p, m, v] : {std::tuple{2u, 2u, 3u}, {4u, 4u, 2u}, {4u, 9u, 4u}, {8u, 8u, 2u}}) {
    // A loop costs 1/v of a stage: makespan (m v + p - 1) / v of F + B.
    const Schedule looped = made(ScheduleFamily::breadth_first, {p, m, v});
    CHECK(timed(looped).makespan() == Approx(3.0 * (m * v + p - 1)));
    CHECK(in_flight_per_device(looped) == Counts(p, m * v));
    // (n-1)/(m L/n) of the ideal time, with L layers on n devices.
    const Schedule layered = made(ScheduleFamily::layered, {p, m, p * v});
    CHECK(layered == looped);
    const double over_ideal = bubble(layered) / timed(layered).busy("d0");
    CHECK(over_ideal == Approx((p - 1.0) / (m * (p * v / static_cast<double>(p)))));
    // A layer has its gradient before the layer before it runs its first backward.
    const auto& lane = layered.devices[0];
    const auto last = std::find(lane.begin(), lane.end(),
                                Action{Op::backward, StageId{p * (v - 1)}, MicrobatchId{m - 1}});
    const auto next = std::find(lane.begin(), lane.end(),
                                Action{Op::backward, StageId{p * (v - 2)}, MicrobatchId{0}});
    CHECK(last + 1 == next);
  }
}

TEST_CASE("PipeDream and 2BW: bubbles vanish in a long stream, rows 18 and 19") {
  for (const std::uint32_t p : {2u, 4u, 8u}) {
    const std::uint32_t m = 2 * p;
    const Schedule stream = made(ScheduleFamily::pipedream_2bw, {p, 6 * m, 1});
    CHECK(bubble(stream) == Approx(3.0 * (p - 1)));  // of the whole stream, not of each update
    CHECK(weight_versions_2bw(stream, m) == Counts(p, 2));
    CHECK(weight_versions_2bw(stream, p) == Counts(p, 2));
    const auto versions = weight_versions_pipedream(stream);
    for (std::uint32_t s = 0; s < p; ++s) {
      CHECK(versions[s] == p - s);
      CHECK(in_flight_per_stage(stream)[s] == p - s);
    }
  }
  // Microbatch k from 1 uses version max(floor((k - 1) / m) - 1, 0).
  CHECK(version_2bw(0, 4) == 0);
  CHECK(version_2bw(7, 4) == 0);
  CHECK(version_2bw(8, 4) == 1);
  CHECK(version_2bw(12, 4) == 2);
}
