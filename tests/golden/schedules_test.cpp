/// Schedules as text: tests/golden/data/schedules/*.txt hold every kind for two to four devices.
/// To write them anew after a change that is meant, run with "[.write-schedules]".
#include "planner/schedules.h"

#include <fmt/format.h>

#include <fstream>

#include "tests/golden/golden_schedule.h"

using namespace troupe;

namespace {

struct Case {
  std::string name;
  ScheduleKind kind;
  StageMap map;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  const auto add = [&](ScheduleKind kind, std::uint32_t p, std::uint32_t v, std::uint32_t m,
                       bool tied) {
    StageMap map = looped_stages(p, m, v);
    map.tied = tied;
    list.push_back({fmt::format("{}_p{}_v{}_m{}{}", to_string(kind), p, v, m, tied ? "_tied" : ""),
                    kind, map});
  };
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble_h1}) {
    add(kind, 2, 1, 4, false);
    add(kind, 3, 1, 5, false);
    add(kind, 4, 1, 1, false);
    add(kind, 4, 1, 8, true);
  }
  add(ScheduleKind::interleaved, 2, 2, 4, false);
  add(ScheduleKind::interleaved, 2, 2, 3, false);
  add(ScheduleKind::interleaved, 3, 2, 6, false);
  add(ScheduleKind::interleaved, 4, 2, 8, true);
  return list;
}

std::string path_of(const Case& one) {
  return fmt::format("{}/tests/golden/data/schedules/{}.txt", TROUPE_SOURCE_DIR, one.name);
}

}  // namespace

TEST_CASE("schedules are the golden ones, and the golden ones are valid") {
  for (const Case& one : cases())
    testing::check_golden_schedule(path_of(one), make_schedule(one.kind, one.map), one.map);
}

TEST_CASE("write the golden schedules", "[.write-schedules]") {
  for (const Case& one : cases()) {
    std::ofstream file(path_of(one));
    file << to_text(make_schedule(one.kind, one.map).value());
    REQUIRE(file.good());
  }
}
