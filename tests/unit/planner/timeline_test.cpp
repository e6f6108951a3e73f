#include "planner/timeline.h"

#include "planner/schedules.h"
#include "planner/simulate.h"
#include "tests/support/catch.h"

using namespace troupe;

TEST_CASE("lanes have titles and an order") {
  const std::vector<std::string> names{"v100", "t4"};
  CHECK(lane_title("d0", names) == "v100");
  CHECK(lane_title("d1>d0", names) == "t4 to v100");
  CHECK(lane_title("d2", names) == "d2");
  CHECK(lane_title("", names) == "");
  CHECK(lane_title("d", names) == "d");
  CHECK(lane_title("d99999999999999999999999", names) == "d99999999999999999999999");
  CHECK(lane_before("d2", "d10"));
  CHECK(lane_before("d10", "d0>d1"));
  CHECK_FALSE(lane_before("d0>d1", "d3"));
}

TEST_CASE("a timeline as text: what takes most of each column") {
  const Schedule schedule = make_schedule(ScheduleKind::one_f_one_b, looped_stages(2, 2)).value();
  const Timeline timeline = simulate(
      schedule, [](const Action& action) { return action.op == Op::backward ? 2.0 : 1.0; });
  REQUIRE(timeline.makespan() == 13);  // a column a second
  CHECK(timeline_text(timeline, {"fast", "slow"}, 13) ==
        "              0      13.0 s\n"
        "fast          FF....BB.BBNU\n"
        "slow          ..FBBFBBN...U\n"
        "fast to slow  .--..........\n"
        "slow to fast  .....-..-....\n");
  // 26 seconds on 13 columns: two a column.
  CHECK(timeline_text(timeline, {"fast", "slow"}, 13, 26).find("fast          F..BBBU......\n") !=
        std::string::npos);
}

TEST_CASE("timelines without time") {
  CHECK(timeline_text({}, {}, 10) == "nothing takes any time\n");
}
