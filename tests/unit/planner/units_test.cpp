#include "planner/units.h"

#include "tests/support/catch.h"

using namespace troupe;

TEST_CASE("sizes carry their unit both ways") {
  CHECK(parse_bytes("24 GiB").value() == 24_GiB);
  CHECK(parse_bytes("1.5KiB").value() == 1536);
  CHECK(parse_bytes("2 MB").value() == 2'000'000);
  CHECK(format_bytes(1536) == "1.50 KiB");
  CHECK(format_bytes(512) == "512 B");
}

TEST_CASE("a size without a unit, or with an unknown one, is refused by name") {
  for (const char* text :
       {"24", "24 Gib", "", "GiB", "-1 GiB", "nan GiB", "1e400 GiB", "1 GiB x"}) {
    const auto result = parse_bytes(text);
    REQUIRE_FALSE(result.ok());
    CHECK(result.error().code == ErrorCode::invalid_input);
    CHECK(result.error().text.find(std::string("\"") + text + "\"") != std::string::npos);
  }
}

TEST_CASE("times and rates") {
  CHECK(parse_seconds("250 ms").value() == Approx(0.25));
  CHECK(parse_rate("12 GB/s").value() == Approx(12e9));
  CHECK_FALSE(parse_rate("12 GB").ok());
  CHECK(format_seconds(0.00456) == "4.56 ms");
}
