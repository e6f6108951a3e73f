/// A schedule against its golden text.
#pragma once

#include <fstream>
#include <iterator>
#include <string>

#include "planner/schedule.h"
#include "tests/support/catch.h"

namespace troupe::testing {

/// The file holds the schedule's text, and the text is a valid schedule over `stages`.
inline void check_golden_schedule(const std::string& path,
                                  const Result<Schedule>& schedule,
                                  const StageMap& stages) {
  INFO(path);
  std::ifstream file(path);
  REQUIRE(file.good());
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  REQUIRE(schedule.ok());
  CHECK(to_text(*schedule) == text);
  const auto parsed = parse_schedule(text, stages);
  REQUIRE(parsed.ok());
  CHECK(validate(*parsed).ok());
}

}  // namespace troupe::testing
