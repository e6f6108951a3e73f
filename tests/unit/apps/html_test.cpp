#include "apps/html.h"

#include <cmath>

#include "tests/support/catch.h"

using namespace troupe;

TEST_CASE("marks of an axis are the multiples of its step, without errors that add up") {
  CHECK(marks_of(-1, 1, 0.5) == std::vector<double>{-1, -0.5, 0, 0.5, 1});
  CHECK(marks_of(2.1, 3.9, 1) == std::vector<double>{3});
  CHECK(marks_of(2.1, 2.9, 1).empty());
  const std::vector<double> tenths = marks_of(0, 50, 0.1);
  REQUIRE(tenths.size() == 501);
  CHECK(tenths[500] == 500 * 0.1);
  // Zero is no -0, which would be printed so.
  CHECK_FALSE(std::signbit(marks_of(-0.3, 0.3, 0.5).at(0)));
}

TEST_CASE("an axis without length has no marks, a fine step no more than a thousand") {
  CHECK(marks_of(0, 0, round_step(0)).empty());
  CHECK(marks_of(0, 1, std::nan("")).empty());
  CHECK(marks_of(0, 1e9, 1).size() == 1000);
}
