/// The published worked examples, every row: makespan, bubble and microbatches in flight.
#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <sstream>

#include "planner/lowering.h"
#include "planner/schedules.h"
#include "planner/simulate.h"
#include "tests/support/catch.h"

using namespace troupe;

namespace {

/// Rows of a CSV file by column name. Quoted fields keep their commas.
std::vector<std::map<std::string, std::string>> read_csv(const std::string& name) {
  std::ifstream file(std::string(TROUPE_SOURCE_DIR) + "/tests/data/published/" + name);
  REQUIRE(file.good());
  const auto split = [](const std::string& line) {
    std::vector<std::string> fields(1);
    bool quoted = false;
    for (const char c : line) {
      if (c == '"') {
        quoted = !quoted;
      } else if (c == ',' && !quoted) {
        fields.emplace_back();
      } else if (c != '\r') {
        fields.back() += c;
      }
    }
    return fields;
  };
  std::string line;
  std::getline(file, line);
  const auto header = split(line);
  std::vector<std::map<std::string, std::string>> rows;
  while (std::getline(file, line)) {
    const auto fields = split(line);
    REQUIRE(fields.size() == header.size());
    for (std::size_t i = 0; i < header.size(); ++i) {
      if (i == 0) rows.emplace_back();
      rows.back()[header[i]] = fields[i];
    }
  }
  return rows;
}

StageMap regular(std::uint32_t p, std::uint32_t v, std::uint32_t m) {
  StageMap map;
  for (std::uint32_t s = 0; s < p * v; ++s) map.device_of_stage.push_back(DeviceId{s % p});
  map.device_count = p;
  map.microbatch_count = m;
  return map;
}

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

/// Most microbatches (of stages or of parts of them) between F and B/W on one device.
std::uint32_t in_flight_of_device(const Schedule& schedule, std::size_t device) {
  const Op closes = schedule.split_backward ? Op::backward_weight : Op::backward;
  std::uint32_t open = 0;
  std::uint32_t most = 0;
  for (const Action& action : schedule.devices[device]) {
    if (action.op == Op::forward) most = std::max(most, ++open);
    if (action.op == closes) --open;
  }
  return most;
}

/// The longest time between a device's first begin and its last end.
Seconds longest_device_span(const Timeline& timeline, std::size_t devices) {
  Seconds longest = 0;
  for (std::size_t d = 0; d < devices; ++d) {
    Seconds first = timeline.makespan();
    Seconds last = 0;
    for (const Span& span : timeline.spans)
      if (span.lane == "d" + std::to_string(d) && span.action.op != Op::norm &&
          span.action.op != Op::update) {
        first = std::min(first, span.begin);
        last = std::max(last, span.end);
      }
    longest = std::max(longest, last - first);
  }
  return longest;
}

void check_in_flight(const std::string& published, const Schedule& schedule) {
  const std::size_t devices = schedule.devices.size();
  if (published.rfind("max ", 0) == 0) {
    std::uint32_t most = 0;
    for (std::size_t d = 0; d < devices; ++d)
      most = std::max(most, in_flight_of_device(schedule, d));
    CHECK(most == number(published.substr(4)));
    return;
  }
  std::stringstream list(published);
  std::string entry;
  for (std::size_t d = 0; d < devices; ++d) {
    REQUIRE(std::getline(list, entry, '|'));
    CHECK(in_flight_of_device(schedule, d) == number(entry));
  }
}

}  // namespace

TEST_CASE("pipeline_schedule_worked.csv, every row") {
  const auto rows = read_csv("pipeline_schedule_worked.csv");
  REQUIRE(rows.size() == 65);
  for (const auto& row : rows) {
    INFO(row.at("row_id") << " " << row.at("schedule"));
    const std::uint32_t p = number(row.at("p"));
    const std::uint32_t m = number(row.at("m"));
    const std::uint32_t v = number(row.at("v"));
    const Schedule schedule = scheduled(row.at("schedule"), regular(p, v, m));
    REQUIRE(validate(schedule).ok());
    const bool split = row.at("t_w") != "in t_b";
    const double forward = std::stod(row.at("t_f")) / v;
    const double backward = std::stod(row.at("t_b")) / v;
    const double weight = split ? std::stod(row.at("t_w")) / v : 0.0;
    const Timeline timeline = simulate(schedule, [&](const Action& action) {
      if (action.op == Op::forward) return forward;
      if (action.op == Op::backward) return backward + weight;
      if (action.op == Op::backward_input) return backward;
      return action.op == Op::backward_weight ? weight : 0.0;
    });
    // H2 has no bubble within a device, but its devices start one after the other: the published
    // time is that of a device, as its optimizer step waits for nobody.
    const Seconds makespan =
        row.at("schedule") == "zb_h2" ? longest_device_span(timeline, p) : timeline.makespan();
    const Seconds busy = timeline.busy("d0");
    CHECK(makespan == Approx(std::stod(row.at("makespan"))));
    CHECK(makespan - busy == Approx(std::stod(row.at("bubble_time"))).margin(1e-9));
    CHECK((makespan - busy) / makespan ==
          Approx(std::stod(row.at("bubble_fraction"))).margin(1e-6));
    check_in_flight(row.at("inflight_microbatches_per_stage"), schedule);
  }
}

/// The columns pipedream_async_weight_versions and pipedream_2bw_weight_versions count versions of
/// weights of asynchronous schedules, which hold several; all schedules here are synchronous.
TEST_CASE("L006 pipeline_inflight_per_stage.csv, every row") {
  const auto rows = read_csv("pipeline_inflight_per_stage.csv");
  REQUIRE(rows.size() == 187);
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::array<std::vector<std::uint32_t>, 2>> made;
  for (const auto& row : rows) {
    INFO(row.at("row_id"));
    const std::uint32_t p = number(row.at("p"));
    const std::uint32_t m = number(row.at("m"));
    auto& [gpipe, one_f_one_b] = made[{p, m}];
    if (gpipe.empty()) {
      gpipe = in_flight_per_stage(compute_schedule(ScheduleKind::gpipe, regular(p, 1, m)));
      one_f_one_b =
          in_flight_per_stage(compute_schedule(ScheduleKind::one_f_one_b, regular(p, 1, m)));
    }
    CHECK(gpipe.at(number(row.at("stage"))) == number(row.at("gpipe")));
    CHECK(one_f_one_b.at(number(row.at("stage"))) == number(row.at("one_f_one_b")));
  }
}
