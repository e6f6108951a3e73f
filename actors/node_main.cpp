#include <fmt/format.h>
#include <unistd.h>

#include <caf/io/all.hpp>

#include <chrono>
#include <set>
#include <thread>

#include "actors/errors.h"
#include "actors/interfaces.h"
#include "actors/launch.h"
#include "actors/system_config.h"
#include "actors/watchdog.h"
#include "devices/zmq_link.h"

namespace troupe {
namespace {

constexpr auto try_timeout = std::chrono::seconds{3};
constexpr auto retry_pause = std::chrono::milliseconds{100};
constexpr auto patience = std::chrono::seconds{1};  ///< before somebody is told of the wait
constexpr auto look_interval = std::chrono::milliseconds{200};
constexpr Seconds leave_timeout = 30;

/// Connects with a deadline, again and again: the run may be starting.
Result<caf::actor> find_door(caf::actor_system& system,
                             caf::scoped_actor& self,
                             const std::string& host,
                             std::uint16_t port,
                             Seconds timeout,
                             const JoinCallbacks& callbacks) {
  const auto begin = std::chrono::steady_clock::now();
  const auto until = begin + std::chrono::duration<double>(timeout);
  bool told = !callbacks.on_waiting;
  std::string why = "it publishes nothing";
  while (std::chrono::steady_clock::now() < until) {
    if (callbacks.should_stop && callbacks.should_stop())
      return Error{ErrorCode::cancelled,
                   fmt::format("stopped before a run answered at {}:{}", host, port)};
    if (!told && std::chrono::steady_clock::now() - begin > patience) {
      callbacks.on_waiting(why);
      told = true;
    }
    caf::actor door;
    self->request(system.middleman().actor_handle(), try_timeout, caf::connect_atom_v, host, port)
        .receive(
            [&](const caf::node_id&, caf::strong_actor_ptr& handle, const std::set<std::string>&) {
              if (handle) door = caf::actor_cast<caf::actor>(handle);
            },
            [&](caf::error& error) { why = from_caf(error, system).text; });
    if (door) return door;
    std::this_thread::sleep_for(retry_pause);
  }
  return Error{ErrorCode::timeout,
               fmt::format("no run answers at {}:{} after {:.0f} s: {}", host, port, timeout, why)};
}

}  // namespace

Status run_node(const std::string& host,
                std::uint16_t port,
                const std::string& name,
                Seconds join_timeout,
                const JoinCallbacks& callbacks) {
  if (!is_loopback(host))
    return Error{ErrorCode::invalid_input,
                 fmt::format("\"{}\" is not a loopback address; without keys Troupe joins runs on "
                             "this machine only",
                             host)};
  SystemConfig config(3, true);
  caf::actor_system system(config);
  caf::scoped_actor self{system};
  auto door = find_door(system, self, host == "localhost" ? "127.0.0.1" : host, port, join_timeout,
                        callbacks);
  if (!door) return door.error();
  NodeActorSetup setup;
  setup.nodes = {name};
  const caf::actor agent = spawn_node_actor(system, std::move(setup));
  Status result;
  Hello hello;
  hello.build = build_text();
  hello.node = name;
  hello.pid = getpid();
  hello.agent = agent;
  self->request(*door, std::chrono::seconds{10}, hello)
      .receive([](const Welcome&) {}, [&](caf::error& error) { result = from_caf(error, system); });
  if (!result) {
    self->send_exit(agent, caf::exit_reason::user_shutdown);
    return result;
  }
  if (callbacks.on_joined) callbacks.on_joined();
  self->monitor(*door);
  self->monitor(agent);
  bool left = false;
  bool run_gone = false;
  bool told = !callbacks.should_stop || !callbacks.on_must_stay;
  self->receive_while([&] { return !left && !run_gone; })(
      [&](const caf::down_msg& down) {
        if (down.source != agent.address()) {
          run_gone = true;
          return;
        }
        left = true;
        if (down.reason && down.reason != caf::exit_reason::user_shutdown)
          result = Error{ErrorCode::internal,
                         "the node's own actor ended: " + from_caf(down.reason, system).text};
      },
      caf::after(look_interval) >>
          [&] {
            if (told || !callbacks.should_stop()) return;
            callbacks.on_must_stay();
            told = true;
          });
  if (!result) return result;
  if (!run_gone) return {};
  // Nobody will ask for anything any more.
  const Watchdog watchdog("the node", leave_timeout);
  if (!left) {
    self->send_exit(agent, caf::exit_reason::user_shutdown);
    self->receive_while([&] { return !left; })([&](const caf::down_msg&) { left = true; });
  }
  return Error{ErrorCode::peer_lost, "the run has gone away"};
}

}  // namespace troupe
