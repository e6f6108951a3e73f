// What goes wrong between processes: damaged and lost frames, and a node that freezes.
#include <signal.h>

#include <atomic>
#include <chrono>
#include <regex>

#include "devices/link_frame.h"
#include "tests/support/catch.h"
#include "tests/support/run_fixture.h"

using namespace troupe;
using namespace troupe::test;

namespace {

/// Two nodes with a device each; n0 may be in the run's process, whose link can be given faults.
struct TwoNodes {
  TemporaryFolder folder;
  RunSpec spec;
  RunOptions options;

  TwoNodes(bool first_in_run, std::uint64_t steps) {
    ModelSpec model = tiny_gpt2();
    model.vocabulary = 256;
    spec = tiny_run(model, tiny_shape(4), 2, ScheduleKind::one_f_one_b, steps);
    std::string text;
    for (std::uint32_t i = 0; i < 4000; ++i) text += static_cast<char>('a' + i * i % 23);
    set_content(folder / "text.txt", text);
    spec.data.files = {(folder / "text.txt").string()};
    spec.data.cache_folder = (folder / "cache").string();
    spec.cluster.nodes = {{"n0", !first_in_run}, {"n1", true}};
    spec.cluster.devices[1].node = NodeId{1};
    pin_stages(spec, {3, 3});
    options.node_program = TROUPE_BINARY_DIR "/troupe";
  }
};

std::string name_of_node(const std::vector<RunEvent>& events, const std::string& node) {
  for (const RunEvent& event : events)
    if (event.kind == "node_joined" && event.text.rfind("node " + node + " ", 0) == 0)
      return event.text;
  return "";
}

pid_t pid_in(const std::string& name) {
  std::smatch match;
  return std::regex_search(name, match, std::regex("pid (\\d+)"))
             ? static_cast<pid_t>(std::stol(match[1]))
             : -1;
}

bool is_forward(const FrameHeader& frame) {
  return frame.kind == FrameKind::data && frame.key.action.op == Op::transfer_forward;
}

}  // namespace

TEST_CASE("damaged and lost tensors are sent again: the bits of an undisturbed run, and counted") {
  TwoNodes run(true, 3);
  std::atomic<std::uint64_t> hits{0};
  run.options.link.patience = 0.1;
  run.options.link.faults = [&](const FrameHeader& frame) {
    if (!is_forward(frame) || frame.attempt > 0) return LinkFault::none;
    const std::uint64_t which = (frame.key.step + frame.key.action.microbatch.value) % 3;
    if (which == 0) return LinkFault::none;
    ++hits;
    return which == 1 ? LinkFault::damage : LinkFault::drop;
  };
  auto tokens = open_token_source(run.spec);
  REQUIRE(tokens.ok());
  const PlayedRun played = play(run.spec, run.options);
  CHECK(played.error == "");
  CHECK(played.trace == reference_trace(run.spec, **tokens));
  CHECK(hits == 8);  // of 3 x 4 microbatches
  std::uint64_t resent = 0;
  for (const StepRow& row : played.rows)
    for (const DeviceRow& device : row.devices) resent += device.resent;
  CHECK(resent >= hits);  // a slow machine may have run out of patience as well
  bool told = false;
  for (const RunEvent& event : played.events)
    told |= event.text.find("link_resent step=1 device=d0") == 0;
  CHECK(told);
}

TEST_CASE("a tensor that is damaged every time ends the run: both ends, tensor and attempts") {
  TwoNodes run(true, 3);
  run.options.link.faults = [](const FrameHeader& frame) {
    const bool hit =
        is_forward(frame) && frame.key.step == 2 && frame.key.action.microbatch.value == 1;
    return hit ? LinkFault::damage : LinkFault::none;
  };
  const PlayedRun played = play(run.spec, run.options);
  INFO(played.error);
  CHECK(played.code == ErrorCode::corrupt);
  CHECK(played.rows.size() == 1);
  const std::string ends = "of step 2 from d0 (the run's own process (pid " +
                           std::to_string(getpid()) + ")) to d1 (" +
                           name_of_node(played.events, "n1") + ")";
  const Action tensor{Op::transfer_forward, StageId{0}, MicrobatchId{1}};
  CHECK(played.error.find(to_string(tensor) + " " + ends) != std::string::npos);
  CHECK(played.error.find("4 attempts") != std::string::npos);
  CHECK(kill(pid_in(name_of_node(played.events, "n1")), 0) != 0);
}

TEST_CASE("L118 a frozen node is named and the run ends soon after the deadline") {
  TwoNodes run(false, 1000000);
  run.spec.request_timeout = 3;
  std::vector<RunEvent> events;
  RunCallbacks callbacks;
  callbacks.on_event = [&](const RunEvent& event) { events.push_back(event); };
  std::chrono::steady_clock::time_point frozen;
  callbacks.on_step = [&](const StepRow& row) {
    if (row.step != 3) return;
    frozen = std::chrono::steady_clock::now();
    kill(pid_in(name_of_node(events, "n1")), SIGSTOP);
  };
  const PlayedRun played = play(run.spec, run.options, callbacks);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - frozen).count();
  INFO(played.error << "\nended after " << seconds << " s");
  const std::string name = name_of_node(events, "n1");
  CHECK(played.code == ErrorCode::timeout);
  CHECK(played.error.find(" (d1) of " + name + " is silent for") != std::string::npos);
  CHECK(seconds >= 3);
  CHECK(seconds < 3 + 4);  // 1.5 s, and something for a busy machine
  for (const std::string node : {"n0", "n1"})
    CHECK(kill(pid_in(name_of_node(events, node)), 0) != 0);
}
