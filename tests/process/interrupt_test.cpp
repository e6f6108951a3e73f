// The whole program: Ctrl-C saves and ends, a killed launcher leaves nobody behind.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>

#include "actors/node_process.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace troupe;

namespace {

std::vector<pid_t> children_of(pid_t parent) {
  std::ifstream in("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) +
                   "/children");
  std::vector<pid_t> list;
  for (pid_t pid = 0; in >> pid;) list.push_back(pid);
  return list;
}

/// A process that has ended and was not waited for yet does not count as running.
bool running(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(in, line)) return false;
  const auto end = line.rfind(')');
  return end != std::string::npos && line.size() > end + 2 && line[end + 2] != 'Z';
}

template <class Condition>
bool within(Seconds seconds, Condition condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    (void)::poll(nullptr, 0, 10);  // other processes have to get on
  }
  return true;
}

/// A port of this machine that nobody listens on.
std::uint16_t free_port() {
  const int server = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  REQUIRE(bind(server, any, length) == 0);
  REQUIRE(getsockname(server, any, &length) == 0);
  close(server);
  return ntohs(address.sin_port);
}

/// `troupe train conf/demo.toml` with more steps than anyone waits for.
struct EndlessRun {
  TemporaryFolder folder;
  NodeProcess program;

  explicit EndlessRun(std::uint16_t port = 0) : program(start(folder, port)) {
    INFO(program.last_lines());
    const bool trains = within(60, [&] { return steps() >= 3; });
    if (!trains) FAIL("no third step within 60 s: " << program.last_lines());
    nodes = children_of(program.pid());
    REQUIRE(nodes.size() == 3);
  }
  static NodeProcess start(const TemporaryFolder& folder, std::uint16_t port = 0) {
    auto started =
        NodeProcess::start(TROUPE_BINARY_DIR "/troupe",
                           {"train", TROUPE_SOURCE_DIR "/conf/demo.toml", "--set",
                            "run.steps=100000", "--set", "run.folder=" + folder.path().string(),
                            "--set", "network.listen=127.0.0.1:" + std::to_string(port)},
                           "train");
    REQUIRE(started.ok());
    return std::move(*started);
  }
  std::size_t steps() const {
    std::ifstream in(folder.path() / "demo" / "metrics.jsonl");
    std::size_t count = 0;
    for (std::string line; std::getline(in, line);) count += line.empty() ? 0 : 1;
    return count;
  }
  bool nobody_left() const {
    for (const pid_t pid : nodes)
      if (running(pid)) return false;
    return true;
  }
  std::vector<pid_t> nodes;
};

}  // namespace

TEST_CASE("Ctrl-C and SIGTERM finish the step, save a checkpoint and leave no process behind") {
  const int signal = GENERATE(SIGINT, SIGTERM);
  EndlessRun run;
  // A batch system sends SIGTERM to every process of the job.
  if (signal == SIGTERM)
    for (const pid_t node : run.nodes) kill(node, signal);
  kill(run.program.pid(), signal);
  CHECK(run.program.wait(30));
  INFO(run.program.last_lines());
  std::size_t complete = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(run.folder.path() / "demo" / "checkpoints"))
    complete += std::filesystem::exists(entry.path() / "manifest.json") ? 1 : 0;
  CHECK(complete == 1);
  CHECK(run.nobody_left());
}

TEST_CASE("L124 kill -9 of the launcher: no process of the run is alive after 5 s") {
  EndlessRun run;
  kill(run.program.pid(), SIGKILL);
  CHECK(run.program.wait(5));
  CHECK(within(5, [&] { return run.nobody_left(); }));
}

TEST_CASE("the port of a killed run can be listened on at once") {
  const std::uint16_t port = free_port();
  EndlessRun killed(port);
  kill(killed.program.pid(), SIGKILL);
  CHECK(killed.program.wait(5));
  // What is left of its connections keeps the port for a minute from those who do not share it.
  const EndlessRun again(port);
  CHECK(again.steps() >= 3);
}

TEST_CASE("Ctrl-C while nodes start ends them at once") {
  const TemporaryFolder folder;
  NodeProcess program = EndlessRun::start(folder);
  std::vector<pid_t> nodes;
  REQUIRE(within(20, [&] { return !(nodes = children_of(program.pid())).empty(); }));
  kill(program.pid(), SIGINT);
  INFO(program.last_lines());
  // Far less than what nodes get to leave that have joined.
  CHECK(program.wait(4));
  for (const pid_t pid : nodes) CHECK(within(2, [pid] { return !running(pid); }));
}
