/// The published worked examples, every row: makespan, bubble and microbatches in flight.
#include <algorithm>
#include <array>
#include <map>
#include <sstream>

#include "planner/lowering.h"
#include "planner/schedule_measures.h"
#include "planner/schedules.h"
#include "planner/simulate.h"
#include "tests/support/catch.h"
#include "tests/support/published_table.h"

using namespace troupe;

namespace {

const std::filesystem::path folder = TROUPE_SOURCE_DIR "/tests/data/published";

std::uint32_t number(const std::string& text) {
  return static_cast<std::uint32_t>(std::stoul(text));
}

Schedule scheduled(const std::string& name, const StageMap& map) {
  if (name == "gpipe") return make_schedule(ScheduleKind::gpipe, map).value();
  if (name == "1f1b") return make_schedule(ScheduleKind::one_f_one_b, map).value();
  if (name == "interleaved_1f1b") return make_schedule(ScheduleKind::interleaved, map).value();
  if (name == "zb_h1") return make_schedule(ScheduleKind::zero_bubble_h1, map).value();
  if (name == "zb_h2") return add_transfers(zero_bubble_h2(map));
  // Published for a backward that hands its gradient on when both halves are done, as a fused one.
  REQUIRE(name == "1f1b_split");
  return make_schedule(ScheduleKind::one_f_one_b, map).value();
}

void check_in_flight(const std::string& published, const Schedule& schedule) {
  const std::vector<std::uint32_t> in_flight = in_flight_per_device(schedule);
  if (published.rfind("max ", 0) == 0) {
    CHECK(*std::max_element(in_flight.begin(), in_flight.end()) == number(published.substr(4)));
    return;
  }
  std::stringstream list(published);
  std::string entry;
  for (const std::uint32_t most : in_flight) {
    REQUIRE(std::getline(list, entry, '|'));
    CHECK(most == number(entry));
  }
}

}  // namespace

TEST_CASE("pipeline_schedule_worked.csv, every row") {
  const published::Table table(folder, "pipeline_schedule_worked");
  REQUIRE(table.size() == 65);
  for (const published::Row& row : table.rows()) {
    INFO(row.text("row_id") << " " << row.text("schedule"));
    const std::uint32_t p = number(row.text("p"));
    const std::uint32_t m = number(row.text("m"));
    const std::uint32_t v = number(row.text("v"));
    const Schedule schedule = scheduled(row.text("schedule"), looped_stages(p, m, v));
    REQUIRE(validate(schedule).ok());
    const bool split = row.text("t_w") != "in t_b";
    const double forward = row.number("t_f") / v;
    const double backward = row.number("t_b") / v;
    const double weight = split ? row.number("t_w") / v : 0.0;
    const Timeline timeline = simulate(schedule, [&](const Action& action) {
      if (action.op == Op::forward) return forward;
      if (action.op == Op::backward) return backward + weight;
      if (action.op == Op::backward_input) return backward;
      return action.op == Op::backward_weight ? weight : 0.0;
    });
    // H2 has no bubble within a device, but its devices start one after the other: the published
    // time is that of a device, as its optimizer step waits for nobody.
    const Seconds makespan =
        row.text("schedule") == "zb_h2" ? longest_device_span(timeline) : timeline.makespan();
    const Seconds busy = timeline.busy("d0");
    CHECK(makespan == Approx(row.number("makespan")));
    CHECK(makespan - busy == Approx(row.number("bubble_time")).margin(1e-9));
    CHECK((makespan - busy) / makespan == Approx(row.number("bubble_fraction")).margin(1e-6));
    check_in_flight(row.text("inflight_microbatches_per_stage"), schedule);
  }
}

/// The columns pipedream_async_weight_versions and pipedream_2bw_weight_versions count versions of
/// weights of asynchronous schedules, which hold several; all schedules here are synchronous.
TEST_CASE("L006 pipeline_inflight_per_stage.csv, every row") {
  const published::Table table(folder, "pipeline_inflight_per_stage");
  REQUIRE(table.size() == 187);
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::array<std::vector<std::uint32_t>, 2>> made;
  for (const published::Row& row : table.rows()) {
    INFO(row.text("row_id"));
    const std::uint32_t p = number(row.text("p"));
    const std::uint32_t m = number(row.text("m"));
    auto& [gpipe, one_f_one_b] = made[{p, m}];
    if (gpipe.empty()) {
      gpipe = in_flight_per_stage(compute_schedule(ScheduleKind::gpipe, looped_stages(p, m)));
      one_f_one_b =
          in_flight_per_stage(compute_schedule(ScheduleKind::one_f_one_b, looped_stages(p, m)));
    }
    CHECK(gpipe.at(number(row.text("stage"))) == number(row.text("gpipe")));
    CHECK(one_f_one_b.at(number(row.text("stage"))) == number(row.text("one_f_one_b")));
  }
}
