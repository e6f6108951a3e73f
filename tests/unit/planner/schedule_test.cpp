#include "planner/schedule.h"

#include <algorithm>

#include "planner/schedules.h"
#include "tests/support/catch.h"

using namespace troupe;

namespace {

StageMap two_stages(std::uint32_t microbatches = 2) {
  StageMap map;
  map.device_of_stage = {DeviceId{0}, DeviceId{1}};
  map.device_count = 2;
  map.microbatch_count = microbatches;
  return map;
}

const std::string good =
    "d0: F0.0 F0.1 B0.0 B0.1 N0 U0\n"
    "d1: F1.0 B1.0 F1.1 B1.1 N1 U1\n"
    "d0>d1: XF0.0 XF0.1\n"
    "d1>d0: XB1.0 XB1.1\n";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string refusal(const std::string& text) {
  const auto schedule = parse_schedule(text, two_stages());
  if (!schedule) return schedule.error().text;
  const Status status = validate(*schedule);
  REQUIRE_FALSE(status.ok());
  return status.error().text;
}

Action action(const char* text) {
  return parse_action(text).value();
}

}  // namespace

TEST_CASE("actions have one text each") {
  for (const char* text :
       {"F2.0", "B0.13", "I1.1", "W1.1", "XF0.3", "XB1.3", "XT0", "N3", "U4294967295"})
    CHECK(to_string(parse_action(text).value()) == text);
  for (const char* text : {"", "F", "F1", "F1.", "F.1", "F-1.0", "F1.0 ", "N1.0", "XT1.0", "Q1.0",
                           "F4294967296.0", "f1.0", "F 1.0"}) {
    INFO(text);
    CHECK_FALSE(parse_action(text).ok());
  }
}

TEST_CASE("schedule names") {
  for (const char* text : {"gpipe", "1f1b", "interleaved", "zb-h1"})
    CHECK(to_string(parse_schedule_kind(text).value()) == text);
  CHECK(parse_schedule_kind("1F1B").error().text.find("\"zb-h1\"") != std::string::npos);
}

TEST_CASE("the text form comes back as the schedule that it was") {
  const auto made = make_schedule(ScheduleKind::one_f_one_b, two_stages()).value();
  CHECK(to_text(made) == good);
  CHECK(parse_schedule(good, two_stages()).value() == made);
  CHECK(validate(made, {2, 1}).ok());
}

TEST_CASE("a text that is no schedule is refused with line and column") {
  CHECK(refusal(replaced(good, "B1.0", "B7.0")) == "schedule:2:10: there are 2 stages");
  CHECK(refusal(replaced(good, "B1.0", "B1.9")) == "schedule:2:10: there are 2 microbatches");
  CHECK(refusal(replaced(good, "B1.0", "Z1.0")).rfind("schedule:2:10: \"Z1.0\" is not", 0) == 0);
  CHECK(refusal(replaced(good, "d1:", "d5:")).rfind("schedule:2:1: \"d5\" is not a lane", 0) == 0);
  CHECK(refusal(good + "d0: F0.0\n") == "schedule:5:1: this lane appears twice");
  CHECK(refusal(good + "what\n").rfind("schedule:5:1:", 0) == 0);
}

TEST_CASE("validation names what is wrong") {
  CHECK(refusal(replaced(good, " N1", "")) == "schedule: N1 is missing");
  CHECK(refusal(replaced(good, " F1.1 B1.1", " B1.1")) == "schedule: F1.1 is missing");
  CHECK(refusal(replaced(good, " XB1.1", "")) == "schedule: XB1.1 is missing");
  CHECK(refusal(replaced(good, "F0.0 F0.1", "F0.1 F0.0")).find("F0.1 on lane d0 is ahead") !=
        std::string::npos);
  CHECK(refusal(replaced(good, "F0.0 F0.1", "F0.0 F0.0 F0.1")).find("there twice") !=
        std::string::npos);
  CHECK(refusal(replaced(good, "d1: F1.0", "d1: F0.0 F1.0")).find("where it does not belong") !=
        std::string::npos);
  CHECK(refusal(replaced(good, "XF0.0", "F0.0")).find("where it does not belong") !=
        std::string::npos);
  CHECK(refusal(replaced(good, "B1.0", "I1.0")).find("mixes fused and split") != std::string::npos);
  CHECK(refusal(replaced(good, "N1", "XT1 N1")).find("XT1") != std::string::npos);
}

TEST_CASE("a deadlock is found, with who waits for what") {
  // Stage 1 wants both microbatches first, stage 0 gives the second only after B0.0.
  const std::string stuck = replaced(replaced(good, "F0.0 F0.1 B0.0", "F0.0 B0.0 F0.1"),
                                     "F1.0 B1.0 F1.1", "F1.0 F1.1 B1.0");
  CHECK(refusal(stuck) ==
        "schedule: deadlock: d0 waits at B0.0 for XB1.0; d1 waits at F1.1 for XF0.1; d0>d1 waits "
        "at XF0.1 for F0.1; d1>d0 waits at XB1.0 for B1.0");
}

TEST_CASE("L008 each stage is held to its own limit of microbatches in flight") {
  StageMap map = two_stages(6);
  map.device_of_stage = {DeviceId{0}, DeviceId{1}, DeviceId{2}, DeviceId{3}};
  map.device_count = 4;
  const auto one_f_one_b = make_schedule(ScheduleKind::one_f_one_b, map).value();
  CHECK(validate(one_f_one_b, {4, 3, 2, 1}).ok());
  const Status over = validate(one_f_one_b, {4, 2, 2, 2});
  REQUIRE_FALSE(over.ok());
  CHECK(over.error().text == "schedule: stage 1 holds 3 microbatches at once, over its limit of 2");
  CHECK_FALSE(validate(one_f_one_b, {4, 3, 2}).ok());
}

TEST_CASE("prerequisites are the data flow, credits and tied halves included") {
  StageMap map = two_stages(5);
  map.tied = true;
  const auto texts = [&](const char* of, bool split = false) {
    std::string text;
    for (const Action& one : prerequisites(action(of), map, split)) text += to_string(one) + " ";
    return text;
  };
  CHECK(texts("F0.0").empty());
  CHECK(texts("F1.3") == "XF0.3 ");
  CHECK(texts("B0.3") == "F0.3 XB1.3 ");
  CHECK(texts("B1.1") == "F1.1 ");
  CHECK(texts("B1.3") == "F1.3 XB1.1 ");
  CHECK(texts("I1.3", true) == "F1.3 XB1.1 ");
  CHECK(texts("W1.3", true) == "I1.3 ");
  CHECK(texts("XF0.1") == "F0.1 ");
  CHECK(texts("XF0.3") == "F0.3 F1.1 ");
  CHECK(texts("XB1.3") == "B1.3 B0.1 ");
  CHECK(texts("XT0") == "B0.4 ");
  CHECK(texts("XT1", true) == "I1.4 ");
  CHECK(texts("N0") == "B0.4 B0.3 B0.2 B0.1 B0.0 XT0 XT1 ");
  CHECK(texts("U1") == "N0 N1 ");
  map.device_of_stage[1] = DeviceId{0};
  CHECK(texts("F1.3") == "F0.3 ");
  CHECK(texts("B1.3") == "F1.3 B0.1 ");
  CHECK(texts("N1") == "B1.4 B1.3 B1.2 B1.1 B1.0 B0.4 ");
}
