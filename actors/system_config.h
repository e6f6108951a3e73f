/// How the actor system of a process is set up.
#pragma once

#include <chrono>

#include "actors/messages.h"

namespace troupe {

/// `worker_threads`: of the scheduler; device, data, storage and node actors have threads of their
/// own. `remote`: loads the network module, with heartbeats on.
class SystemConfig : public caf::actor_system_config {
 public:
  explicit SystemConfig(std::size_t worker_threads = 3, bool remote = false);
};

inline constexpr std::chrono::seconds heartbeat_interval{1};
inline constexpr std::chrono::seconds connection_timeout{15};

}  // namespace troupe
