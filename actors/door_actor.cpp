/// Where node processes knock: each tells who it is and is admitted once, or refused with a reason
/// that names both sides.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "actors/errors.h"
#include "actors/interfaces.h"

namespace troupe {
namespace {

struct DoorState {
  DoorState() {}
  static inline const char* name = "door";
  DoorActorSetup setup;
  std::set<std::string> inside;
};

Status admit(const DoorState& state, const Hello& hello) {
  if (hello.protocol != protocol_version || hello.build != state.setup.build)
    return Error{
        ErrorCode::protocol,
        fmt::format("node \"{}\" is Troupe {} (protocol {}), the run is Troupe {} "
                    "(protocol {}); both must be the same",
                    hello.node, hello.build, hello.protocol, state.setup.build, protocol_version)};
  const auto& nodes = state.setup.nodes;
  if (std::find(nodes.begin(), nodes.end(), hello.node) == nodes.end())
    return Error{ErrorCode::not_found, fmt::format("the run has no node \"{}\"; it waits for {}",
                                                   hello.node, fmt::join(nodes, ", "))};
  if (state.inside.count(hello.node) != 0)
    return Error{ErrorCode::invalid_input,
                 fmt::format("a node \"{}\" has joined already", hello.node)};
  if (!hello.agent) return Error{ErrorCode::protocol, "the hello names no agent"};
  return {};
}

caf::behavior door_actor(ActorOf<DoorState>* self, DoorActorSetup setup) {
  DoorState& state = self->state;
  state.setup = std::move(setup);
  return {
      [&state, self](const Hello& hello) -> caf::result<Welcome> {
        if (const Status admitted = admit(state, hello); !admitted) {
          return to_caf(admitted.error());
        }
        state.inside.insert(hello.node);
        self->send(state.setup.observer, NodeJoined{hello});
        return Welcome{hello.epoch, hello.step, protocol_version, state.setup.build};
      },
  };
}

}  // namespace

caf::actor spawn_door_actor(caf::actor_system& system, DoorActorSetup setup) {
  return system.spawn(door_actor, std::move(setup));
}

}  // namespace troupe
