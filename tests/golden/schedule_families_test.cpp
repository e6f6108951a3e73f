/// Simulated schedules as text: tests/golden/data/schedule_families/*.txt. To write them anew after
/// a change that is meant, run with "[.write-schedules]".
#include "planner/schedule_families.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "tests/golden/golden_schedule.h"

using namespace troupe;

namespace {

struct Case {
  ScheduleFamily family;
  FamilyShape shape;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (std::size_t i = 0; i < schedule_family_count; ++i) {
    const auto family = static_cast<ScheduleFamily>(i);
    const std::uint32_t loops = family == ScheduleFamily::layered ? 8 : 2;
    list.push_back({family, {4, 8, loops}});
    list.push_back({family, {2, 4, loops}});
  }
  return list;
}

std::string path_of(const Case& one) {
  return fmt::format("{}/tests/golden/data/schedule_families/{}_p{}_m{}.txt", TROUPE_SOURCE_DIR,
                     to_string(one.family), one.shape.devices, one.shape.microbatches);
}

}  // namespace

TEST_CASE("simulated schedules are the golden ones, and the golden ones are valid") {
  for (const Case& one : cases())
    testing::check_golden_schedule(path_of(one), make_schedule(one.family, one.shape),
                                   family_stages(one.family, one.shape));
}

TEST_CASE("write the golden simulated schedules", "[.write-schedules]") {
  std::filesystem::create_directories(std::string(TROUPE_SOURCE_DIR) +
                                      "/tests/golden/data/schedule_families");
  for (const Case& one : cases()) {
    std::ofstream file(path_of(one));
    file << to_text(make_schedule(one.family, one.shape).value());
    REQUIRE(file.good());
  }
}
