// Runs whose emulated devices or links do not do what the plan was told.
#include <algorithm>

#include "tests/support/catch.h"
#include "tests/support/run_fixture.h"
#include "tests/support/sanitizers.h"

using namespace troupe;
using namespace troupe::test;

namespace {

/// Two blocks on each of three devices, 3 ms a pass of a layer; links of 1 ms.
RunSpec three_devices(std::uint64_t steps) {
  RunSpec spec = tiny_run(tiny_gpt2(), tiny_shape(4), 3, ScheduleKind::one_f_one_b, steps);
  for (DeviceSpec& device : spec.cluster.devices) {
    device.kind = DeviceKind::emulated;
    for (auto& [layer, seconds] : device.measured) seconds = {3e-3, 3e-3, 3e-3, 1e-3, 1e-3};
  }
  spec.cluster.same_process = {1e-3, 0};
  spec.state_hash_every = 0;
  pin_stages(spec, {2, 2, 2});
  return spec;
}

std::vector<RunEvent> events_of(const PlayedRun& run, const std::string& kind) {
  std::vector<RunEvent> out;
  std::copy_if(run.events.begin(), run.events.end(), std::back_inserter(out),
               [&](const RunEvent& event) { return event.kind == kind; });
  return out;
}

bool skipped() {
  if (thread_sanitizer)
    WARN("skipped: under the thread sanitizer messages take longer than the modelled actions");
  return thread_sanitizer;
}

/// The run with exactly one drift that ends `ends` times, up to step `ended_by`; whatever else the
/// machine does may make others, or hold up the end, so that up to five runs are made.
PlayedRun run_with_one_drift(const RunSpec& spec, std::size_t ends, std::uint64_t ended_by = 0) {
  for (int attempt = 1;; ++attempt) {
    PlayedRun run = play(spec, with_tokens(spec));
    REQUIRE(run.error == "");
    const auto ended = events_of(run, "drift_ended");
    const bool as_meant = events_of(run, "drift").size() == 1 && ended.size() == ends &&
                          (ended.empty() || ended.back().step <= ended_by);
    if (attempt == 5 || as_meant) return run;
  }
}

}  // namespace

TEST_CASE("L024 a device that becomes slow is named with its stage, and when it is over") {
  if (skipped()) return;
  RunSpec spec = three_devices(50);
  spec.cluster.disturbances.push_back({DeviceId{1}, DeviceId{1}, 1.5, 20, 35});
  const PlayedRun run = run_with_one_drift(spec, 1, 40);
  const auto begun = events_of(run, "drift");
  REQUIRE(begun.size() == 1);
  INFO(begun[0].text);
  CHECK(begun[0].step >= 20);
  CHECK(begun[0].step < 25);
  CHECK(begun[0].text.find("arithmetic of stage 1 on n0.cpu1 (d1) of node n0") !=
        std::string::npos);
  CHECK(begun[0].text.find("1.50 x the plan's") != std::string::npos);
  const auto ended = events_of(run, "drift_ended");
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].step > 35);
  CHECK(ended[0].step <= 40);
}

TEST_CASE("L024 a plan that would be faster is suggested with what it gains") {
  if (skipped()) return;
  RunSpec spec = three_devices(16);
  spec.cluster.disturbances.push_back({DeviceId{1}, DeviceId{1}, 4, 4});
  const PlayedRun run = run_with_one_drift(spec, 0);
  const auto suggested = events_of(run, "plan_suggested");
  REQUIRE(suggested.size() == 1);
  INFO(suggested[0].text);
  CHECK(suggested[0].text.find("another plan would take ") == 0);
  // One of the slow device's two layers goes, or both.
  CHECK(suggested[0].text.find("on n0.cpu0") != std::string::npos);
  CHECK(suggested[0].text.find("2-3 on n0.cpu1") == std::string::npos);
}

TEST_CASE("a slow link is named with both ends") {
  if (skipped()) return;
  RunSpec spec = three_devices(12);
  spec.cluster.disturbances.push_back({DeviceId{1}, DeviceId{2}, 20, 1});
  const PlayedRun run = run_with_one_drift(spec, 0);
  const auto begun = events_of(run, "drift");
  REQUIRE(begun.size() == 1);
  INFO(begun[0].text);
  CHECK(begun[0].text.find("link n0.cpu1 (d1) of node n0 > n0.cpu2 (d2) of node n0") !=
        std::string::npos);
}

TEST_CASE("a run that goes as planned raises no alarm") {
  if (skipped()) return;
  const RunSpec spec = three_devices(30);
  for (int attempt = 1;; ++attempt) {
    const PlayedRun run = play(spec, with_tokens(spec));
    REQUIRE(run.error == "");
    if (attempt < 5 && !events_of(run, "drift").empty()) continue;
    CHECK(events_of(run, "drift").empty());
    CHECK(events_of(run, "drift_ended").empty());
    break;
  }
}
