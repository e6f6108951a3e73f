#include "planner/schedule_cursor.h"

#include "planner/schedules.h"
#include "tests/support/catch.h"

using namespace troupe;

namespace {

Schedule two_stages() {
  StageMap map;
  map.device_of_stage = {DeviceId{0}, DeviceId{1}};
  map.device_count = 2;
  map.microbatch_count = 2;
  return make_schedule(ScheduleKind::one_f_one_b, map).value();
}

Action action(const char* text) {
  return parse_action(text).value();
}

}  // namespace

TEST_CASE("a cursor gives the lane's actions as their inputs finish") {
  const Schedule schedule = two_stages();
  ScheduleCursor cursor(schedule, DeviceId{1});
  CHECK_FALSE(cursor.next_ready());
  CHECK(cursor.missing() == std::vector<Action>{action("XF0.0")});
  cursor.note_finished(action("XF0.0"));
  REQUIRE(cursor.next_ready() == action("F1.0"));
  cursor.start_next();
  CHECK(cursor.running() == action("F1.0"));
  CHECK_FALSE(cursor.next_ready());  // one at a time
  cursor.note_finished(action("F1.0"));
  CHECK(cursor.next_ready() == action("B1.0"));
}

TEST_CASE("foreign actions may come early, twice and in any order") {
  const Schedule schedule = two_stages();
  ScheduleCursor cursor(schedule, DeviceId{1});
  for (const char* text : {"XF0.1", "N0", "XF0.0", "XF0.1", "XB1.0", "F0.0"})
    cursor.note_finished(action(text));
  std::string played;
  while (const auto next = cursor.next_ready()) {
    cursor.start_next();
    cursor.note_finished(*next);
    played += to_string(*next) + " ";
  }
  CHECK(played == "F1.0 B1.0 F1.1 B1.1 N1 U1 ");
  CHECK(cursor.done());
  CHECK_FALSE(cursor.head());
  cursor.reset();
  CHECK_FALSE(cursor.done());
  CHECK_FALSE(cursor.next_ready());
}

TEST_CASE("a link lane waits for its data and for room at the receiver") {
  StageMap map;
  map.device_of_stage = {DeviceId{0}, DeviceId{1}};
  map.device_count = 2;
  map.microbatch_count = 3;
  map.transfer_slots = 1;
  const Schedule schedule = make_schedule(ScheduleKind::gpipe, map).value();
  ScheduleCursor link(schedule, schedule.links.front());
  for (const char* text : {"F0.0", "F0.1", "F0.2"}) link.note_finished(action(text));
  REQUIRE(link.next_ready() == action("XF0.0"));
  link.start_next();
  link.note_finished(action("XF0.0"));
  CHECK_FALSE(link.next_ready());
  CHECK(link.missing() == std::vector<Action>{action("F1.0")});
  link.note_finished(action("F1.0"));
  CHECK(link.next_ready() == action("XF0.1"));
}

TEST_CASE("a run tells every lane that waits") {
  const Schedule schedule = two_stages();
  ScheduleRun run(schedule);
  CHECK(run.lane_count() == 4);
  CHECK(run.lane_name(3) == "d1>d0");
  std::size_t finished = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t lane = 0; lane < run.lane_count(); ++lane)
      if (run.cursor(lane).next_ready()) {
        run.cursor(lane).start_next();
        run.finish(lane);
        ++finished;
        moved = true;
      }
  }
  CHECK(run.done());
  CHECK(finished == 6 + 6 + 2 + 2);
  CHECK(run.waiting().empty());
}
