// The order of one device's work: ahead of its own completions, never ahead of anyone else's.
#include "actors/device_program.h"

#include "planner/schedules.h"
#include "tests/support/catch.h"

using namespace troupe;

namespace {

Action act(const char* text) {
  auto action = parse_action(text);
  REQUIRE(action.ok());
  return *action;
}

Schedule two_stages(std::uint32_t microbatches, std::uint32_t slots = 2) {
  StageMap stages;
  stages.device_of_stage = {DeviceId{0}, DeviceId{1}};
  stages.device_count = 2;
  stages.microbatch_count = microbatches;
  stages.transfer_slots = slots;
  auto schedule = make_schedule(ScheduleKind::one_f_one_b, stages);
  REQUIRE(schedule.ok());
  return std::move(*schedule);
}

/// Everything that may be handed over now.
std::string taken(DeviceProgram& program) {
  std::string text;
  while (const auto action = program.take_action()) text += to_string(*action) + " ";
  return text;
}

}  // namespace

TEST_CASE("a device is given what follows from its own work before that has ended") {
  const Schedule schedule = two_stages(2);
  DeviceProgram last(schedule, DeviceId{1});
  CHECK(taken(last) == "");  // nothing has arrived
  CHECK(last.waiting() == "d1 waits at F1.0 for XF0.0");
  last.note_foreign(act("XF0.0"));
  CHECK(taken(last) == "F1.0 B1.0 ");  // B1.0 needs F1.0 alone, and the device keeps order
  CHECK(last.waiting() == "d1 runs F1.0");
  CHECK_FALSE(last.take_transfer());  // but a link waits for the real end
  last.note_own(act("F1.0"));
  CHECK_FALSE(last.take_transfer());
  last.note_own(act("B1.0"));
  const auto sent = last.take_transfer();
  REQUIRE(sent);
  CHECK(to_string(sent->first) == "XB1.0");
  CHECK(sent->second == DeviceId{0});
  CHECK(last.waiting() == "d1 sends XB1.0 to d0");
}

TEST_CASE("a transfer that the stages do not have has no receiver") {
  const StageMap stages = two_stages(4).stages;
  CHECK(receiver_of(act("XF0.3"), stages) == StageId{1});
  CHECK(receiver_of(act("XB1.0"), stages) == StageId{0});
  for (const char* none : {"XF1.0", "XB0.0", "XF0.4", "XF7.0", "XB2.1", "F0.0", "XT0"}) {
    INFO(none);
    CHECK_FALSE(receiver_of(act(none), stages));
  }
}

TEST_CASE("at most three actions wait in a device's queue") {
  const Schedule schedule = two_stages(8);
  DeviceProgram last(schedule, DeviceId{1});
  for (const char* arrived : {"XF0.0", "XF0.1", "XF0.2"}) last.note_foreign(act(arrived));
  CHECK(taken(last) == "F1.0 B1.0 F1.1 ");
  last.note_own(act("F1.0"));
  CHECK(taken(last) == "B1.1 ");
}

TEST_CASE("U waits for all N and for the run's decision, also on a device that has every stage") {
  StageMap stages;
  stages.device_of_stage = {DeviceId{0}, DeviceId{0}};
  auto made = make_schedule(ScheduleKind::gpipe, stages);
  REQUIRE(made.ok());
  const Schedule schedule = std::move(*made);
  DeviceProgram program(schedule, DeviceId{0});
  std::vector<Action> queue;
  bool allowed = false;
  for (int round = 0; round < 100 && !program.done(); ++round) {
    while (const auto action = program.take_action()) queue.push_back(*action);
    if (queue.empty()) {
      CHECK_FALSE(allowed);
      CHECK(to_string(schedule.devices[0][6]).front() == 'U');
      allowed = true;
      program.allow_updates();
      continue;
    }
    if (queue.front().op == Op::update) CHECK(allowed);
    program.note_own(queue.front());
    queue.erase(queue.begin());
  }
  CHECK(allowed);
  CHECK(program.done());
  CHECK(program.finished() == 8);
  program.reset();
  CHECK_FALSE(program.done());
}

TEST_CASE("validation does not overwrite an output before it was read") {
  const Schedule forward = evaluation_schedule(two_stages(4, 1));
  CHECK(to_text(forward) ==
        "d0: F0.0 F0.1 F0.2 F0.3\nd1: F1.0 F1.1 F1.2 F1.3\nd0>d1: XF0.0 XF0.1 XF0.2 XF0.3\n");
  DeviceProgram first(forward, DeviceId{0}, DeviceProgram::Kind::evaluation);
  CHECK(taken(first) == "F0.0 ");  // one slot: F0.1 waits for F1.0
  first.note_own(act("F0.0"));
  CHECK(first.take_transfer()->first == act("XF0.0"));
  first.note_delivered(act("XF0.0"));
  CHECK(taken(first) == "");
  first.note_foreign(act("F1.0"));
  CHECK(taken(first) == "F0.1 ");
}
