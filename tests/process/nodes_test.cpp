// Three node processes over CAF and ZeroMQ: the bits of one device, and a clear end when one dies.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <map>
#include <regex>
#include <set>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/run_fixture.h"

using namespace troupe;
using namespace troupe::test;

namespace {

/// A run whose nodes are processes and whose tokens come from a file.
struct ProcessRun {
  TemporaryFolder folder;
  RunSpec spec;
  RunOptions options;

  explicit ProcessRun(std::uint32_t nodes,
                      ScheduleKind kind = ScheduleKind::one_f_one_b,
                      std::uint64_t steps = 4,
                      bool first_in_run = false,
                      ModelSpec model = tiny_gpt2(),
                      const StepShape& shape = tiny_shape(4)) {
    model.vocabulary = 256;
    spec = tiny_run(model, shape, nodes, kind, steps);
    std::string text;
    for (std::uint32_t i = 0; i < 4000; ++i) text += static_cast<char>('a' + i * i % 23);
    set_content(folder / "text.txt", text);
    spec.data.files = {(folder / "text.txt").string()};
    spec.data.cache_folder = (folder / "cache").string();
    spec.cluster.nodes.clear();
    for (std::uint32_t n = 0; n < nodes; ++n) {
      spec.cluster.nodes.push_back({"n" + std::to_string(n), n > 0 || !first_in_run});
      spec.cluster.devices[n].node = NodeId{n};
      spec.cluster.devices[n].name = "n" + std::to_string(n) + ".cpu0";
    }
    options.node_program = TROUPE_BINARY_DIR "/troupe";
  }
  Trace reference(TensorValues* gradients = nullptr) const {
    auto tokens = open_token_source(spec);
    REQUIRE(tokens.ok());
    return reference_trace(spec, **tokens, gradients);
  }
};

/// Process ids of the nodes that joined.
std::vector<pid_t> pids_of(const std::vector<RunEvent>& events) {
  std::vector<pid_t> pids;
  std::smatch match;
  for (const RunEvent& event : events)
    if (event.kind == "node_joined" &&
        std::regex_search(event.text, match, std::regex("pid (\\d+)")))
      pids.push_back(static_cast<pid_t>(std::stol(match[1])));
  return pids;
}

bool all_gone(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids)
    if (kill(pid, 0) == 0) return false;
  return true;
}

/// One training over three processes, three steps, against one device: losses, norms and hashes of
/// every step, gradients of every tensor in the last, memory to the byte.
struct ProcessPoint {
  ScheduleKind schedule = ScheduleKind::gpipe;
  bool llama = false, tied = false, bf16 = false;
  std::uint32_t microbatches = 1;
  bool dropout = false;
  std::uint32_t threads = 1;
};

void check_three_processes(const ProcessPoint& p) {
  INFO(to_string(p.schedule) << (p.llama ? ", llama" : ", gpt2") << (p.tied ? " tied" : " untied")
                             << (p.bf16 ? " bf16, " : " f32, ") << p.microbatches
                             << " microbatches, " << p.threads << " threads"
                             << (p.dropout ? ", dropout" : ""));
  ModelSpec model = p.llama ? tiny_llama(p.tied) : tiny_gpt2(p.tied);
  model.dropout = p.dropout ? 0.1 : 0;
  ProcessRun run(3, p.schedule, 3, false, model,
                 tiny_shape(p.microbatches, 2, p.bf16 ? DType::bf16 : DType::f32));
  pin_stages(run.spec, p.schedule == ScheduleKind::interleaved
                           ? std::vector<std::uint32_t>{1, 1, 1, 1, 1, 1}
                           : std::vector<std::uint32_t>{2, 3, 1});
  for (DeviceSpec& device : run.spec.cluster.devices) device.threads = p.threads;
  without_momentum(run.spec);
  run.options.trace_step = 3;
  run.options.checkpoint_folder = (run.folder / "checkpoints").string();
  const PlayedRun played = play(run.spec, run.options);
  REQUIRE(played.error == "");
  TensorValues gradients;
  CHECK(played.trace == run.reference(&gradients));
  CHECK(played.played.spans.size() == played.plan.timeline.spans.size());
  check_last_gradients(played.outcome.last_checkpoint, gradients);
  for (const StepRow& row : played.rows)
    for (const DeviceRow& device : row.devices)
      CHECK(device.peak == played.plan.memory.at(device.device.index()).total());
  const auto pids = pids_of(played.events);
  CHECK(pids.size() == 3);
  CHECK(all_gone(pids));
}

constexpr ScheduleKind schedules[] = {ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                                      ScheduleKind::interleaved, ScheduleKind::zero_bubble_h1};
constexpr std::uint32_t microbatch_counts[] = {1, 2, 3, 8};

}  // namespace

TEST_CASE("three node processes give the bits of one device, under every schedule") {
  // Every schedule with every model; types, microbatches, dropout and threads shifted so that each
  // value of them meets each schedule and each model.
  for (std::uint32_t s = 0; s < 4; ++s)
    for (std::uint32_t model = 0; model < 4; ++model)
      check_three_processes({schedules[s], model / 2 == 1, model % 2 == 1, (s + model) % 2 == 1,
                             microbatch_counts[(s + 3 * model) % 4], (s + model / 2) % 2 == 1,
                             1 + (s / 2 + model) % 2});
}

TEST_CASE("the full product of schedules, models, types and microbatches over three processes",
          "[.all]") {
  for (std::uint32_t i = 0; i < 4 * 4 * 2 * 4; ++i)
    check_three_processes({schedules[i % 4], i / 4 % 2 == 1, i / 8 % 2 == 1, i / 16 % 2 == 1,
                           microbatch_counts[i / 32], (i + i / 8 + i / 32) % 2 == 1,
                           1 + (i / 2 + i / 16) % 2});
}

TEST_CASE("a node in the run's process, one beside it, checkpoints and validation") {
  ProcessRun run(2, ScheduleKind::one_f_one_b, 6, true);
  pin_stages(run.spec, {3, 3});
  run.spec.evaluation = {3, 2};
  run.options.checkpoint_folder = (run.folder / "checkpoints").string();
  const Trace expected = run.reference();
  RunSpec half = run.spec;
  half.steps = 3;
  const PlayedRun first = play(half, run.options);
  CHECK(first.error == "");
  REQUIRE_FALSE(first.outcome.last_checkpoint.empty());
  RunSpec rest = run.spec;
  rest.plan.pinned = {{{0, 1}, DeviceId{1}}, {{1, 6}, DeviceId{0}}};
  rest.checkpoint.resume_from = first.outcome.last_checkpoint;
  const PlayedRun second = play(rest, run.options);
  CHECK(second.error == "");
  Trace joined = first.trace;
  for (std::size_t i = 0; i < second.rows.size(); ++i) {
    joined.loss_bits.push_back(second.trace.loss_bits[i]);
    joined.norm_bits.push_back(second.trace.norm_bits[i]);
    joined.state_hash.push_back(second.trace.state_hash[i]);
    joined.skipped.push_back(second.trace.skipped[i]);
  }
  CHECK(joined == expected);
  CHECK(first.evaluations.size() == 1);
  CHECK(second.evaluations.size() == 1);
}

TEST_CASE("L130 nodes with two, four and one device hold each device once, under its own node") {
  ModelSpec model = tiny_gpt2();
  model.blocks = 5;
  ProcessRun run(7, ScheduleKind::one_f_one_b, 3, false, model);
  const std::vector<std::uint32_t> node_of = {0, 0, 1, 1, 1, 1, 2};
  run.spec.cluster.nodes = {{"n0", true}, {"n1", true}, {"n2", true}};
  std::map<std::uint32_t, std::uint32_t> local;
  for (std::uint32_t d = 0; d < 7; ++d) {
    DeviceSpec& device = run.spec.cluster.devices[d];
    device.node = NodeId{node_of[d]};
    device.name = "n" + std::to_string(node_of[d]) + ".cpu" + std::to_string(local[node_of[d]]++);
  }
  // Neighbours of the pipeline are on other nodes more often than not.
  for (std::uint32_t s = 0; s < 7; ++s)
    run.spec.plan.pinned.push_back({{s, s + 1}, DeviceId{3 * s % 7}});
  run.options.trace_step = 2;
  const PlayedRun played = play(run.spec, run.options);
  REQUIRE(played.error == "");
  CHECK(played.trace == run.reference());
  std::set<std::string> joined;
  for (const RunEvent& event : played.events)
    if (event.kind == "node_joined") joined.insert(event.text.substr(0, event.text.find(" (")));
  CHECK(joined.size() == 3);
  CHECK(pids_of(played.events).size() == 3);
  for (const StepRow& row : played.rows) {
    std::set<DeviceId> devices;
    for (const DeviceRow& device : row.devices) {
      CHECK(devices.insert(device.device).second);
      CHECK(device.peak == played.plan.memory.at(device.device.index()).total());
    }
    CHECK(devices.size() == 7);
  }
  std::map<Action, std::string> lanes;
  for (const Span& span : played.played.spans) CHECK(lanes.emplace(span.action, span.lane).second);
  CHECK(played.played.spans.size() == played.plan.timeline.spans.size());
  for (const Span& span : played.plan.timeline.spans) CHECK(lanes.at(span.action) == span.lane);
}

TEST_CASE("L141 a killed node ends the run with its name, pid and signal; nobody is left") {
  ProcessRun run(3, ScheduleKind::one_f_one_b, 1000000);
  pin_stages(run.spec, {2, 2, 2});
  std::vector<RunEvent> events;
  RunCallbacks callbacks;
  callbacks.on_event = [&](const RunEvent& event) { events.push_back(event); };
  std::chrono::steady_clock::time_point killed;
  callbacks.on_step = [&](const StepRow& row) {
    if (row.step != 3) return;
    killed = std::chrono::steady_clock::now();
    kill(pids_of(events).at(1), SIGKILL);
  };
  const PlayedRun played = play(run.spec, run.options, callbacks);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - killed).count();
  INFO(played.error);
  CHECK(played.code == ErrorCode::peer_lost);
  CHECK(played.error.find("signal 9") != std::string::npos);
  CHECK(played.error.find("pid " + std::to_string(pids_of(events).at(1))) != std::string::npos);
  CHECK(played.error.find("stopped as a result") != std::string::npos);
  CHECK(seconds < 15);
  CHECK(all_gone(pids_of(events)));
}

TEST_CASE("a node that freezes is noticed within a deadline") {
  ProcessRun run(2, ScheduleKind::one_f_one_b, 1000000);
  pin_stages(run.spec, {3, 3});
  run.spec.request_timeout = 3;
  std::vector<RunEvent> events;
  RunCallbacks callbacks;
  callbacks.on_event = [&](const RunEvent& event) { events.push_back(event); };
  callbacks.on_step = [&](const StepRow& row) {
    if (row.step == 2) kill(pids_of(events).at(0), SIGSTOP);
  };
  const auto begin = std::chrono::steady_clock::now();
  const PlayedRun played = play(run.spec, run.options, callbacks);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  INFO(played.error);
  CHECK((played.code == ErrorCode::timeout || played.code == ErrorCode::peer_lost));
  CHECK(seconds < 40);
  CHECK(all_gone(pids_of(events)));
}

TEST_CASE("a node program that fails at once is quoted") {
  ProcessRun run(2);
  run.options.node_program = "/bin/false";
  const PlayedRun played = play(run.spec, run.options);
  CHECK(played.code == ErrorCode::peer_lost);
  CHECK(played.error.find("exit status 1") != std::string::npos);
}

TEST_CASE("a node that never joins is named") {
  ProcessRun run(2);
  run.options.node_program = "/bin/cat";  // waits for nothing that comes
  run.spec.joining_nodes = {NodeId{0}, NodeId{1}};
  run.spec.join_timeout = 0.5;
  const PlayedRun played = play(run.spec, run.options);
  CHECK(played.code == ErrorCode::timeout);
  CHECK(played.error.find("n0, n1 did not join") != std::string::npos);
}

TEST_CASE("other addresses than loopback are refused by both sides") {
  ProcessRun run(2);
  run.spec.listen_host = "0.0.0.0";
  const PlayedRun played = play(run.spec, run.options);
  CHECK(played.code == ErrorCode::invalid_input);
  CHECK(played.error.find("127.0.0.1") != std::string::npos);
  const Status joined = run_node("10.0.0.1", 1, "n0", 1);
  REQUIRE_FALSE(joined.ok());
  CHECK(joined.error().code == ErrorCode::invalid_input);
}

TEST_CASE("L120 joining a server that accepts and says nothing ends at the deadline") {
  const int server = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(bind(server, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(listen(server, 4) == 0);
  socklen_t length = sizeof address;
  getsockname(server, reinterpret_cast<sockaddr*>(&address), &length);
  const auto begin = std::chrono::steady_clock::now();
  const Status joined = run_node("127.0.0.1", ntohs(address.sin_port), "n0", 1);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  REQUIRE_FALSE(joined.ok());
  CHECK(joined.error().text.find("127.0.0.1:" + std::to_string(ntohs(address.sin_port))) !=
        std::string::npos);
  CHECK(seconds < 10);
  close(server);
}

TEST_CASE("a node that waits for its run says so once, and can be stopped") {
  const int nobody = socket(AF_INET, SOCK_STREAM, 0);  // bound, not listening: the port is nobody's
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(bind(nobody, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  socklen_t length = sizeof address;
  getsockname(nobody, reinterpret_cast<sockaddr*>(&address), &length);
  std::vector<std::string> told;
  int asked_after = 0;
  JoinCallbacks callbacks;
  callbacks.on_waiting = [&](const std::string& why) { told.push_back(why); };
  callbacks.should_stop = [&] { return !told.empty() && ++asked_after > 3; };
  const Status joined = run_node("127.0.0.1", ntohs(address.sin_port), "n0", 30, callbacks);
  close(nobody);
  REQUIRE_FALSE(joined.ok());
  CHECK(joined.error().code == ErrorCode::cancelled);
  REQUIRE(told.size() == 1);
  CHECK(told.front() != "");
}

TEST_CASE("nodes that were started by hand join, unknown names are refused") {
  ProcessRun run(2, ScheduleKind::one_f_one_b, 3);
  pin_stages(run.spec, {3, 3});
  run.spec.joining_nodes = {NodeId{0}, NodeId{1}};
  std::vector<std::future<Status>> nodes;
  std::atomic<int> joined = 0;
  JoinCallbacks joining;
  joining.on_joined = [&] { ++joined; };
  RunCallbacks callbacks;
  callbacks.on_event = [&](const RunEvent& event) {
    if (event.kind != "listening") return;
    const auto port =
        static_cast<std::uint16_t>(std::stoul(event.text.substr(event.text.rfind(':') + 1)));
    for (const std::string name : {"n0", "n1", "n7"})
      nodes.push_back(std::async(std::launch::async, [name, port, joining] {
        return run_node("127.0.0.1", port, name, 10, joining);
      }));
  };
  const PlayedRun played = play(run.spec, run.options, callbacks);
  CHECK(played.error == "");
  CHECK(played.trace == run.reference());
  REQUIRE(nodes.size() == 3);
  CHECK(nodes[0].get().ok());
  CHECK(nodes[1].get().ok());
  const Status stranger = nodes[2].get();
  CHECK(joined == 2);
  REQUIRE_FALSE(stranger.ok());
  CHECK(stranger.error().text.find("no node \"n7\"; it waits for n0, n1") != std::string::npos);
}
