#include "actors/system_config.h"

#include <caf/io/all.hpp>

namespace troupe {

SystemConfig::SystemConfig(std::size_t worker_threads, bool remote) {
  add_message_types<caf::id_block::troupe>();
  // Workers that share one queue wake in microseconds; stealing ones poll (notes of the scheduler).
  set("scheduler.policy", caf::atom("sharing"));
  set("scheduler.max-threads", worker_threads);
  if (!remote) return;
  load<caf::io::middleman>();
  set("middleman.heartbeat-interval", caf::timespan{heartbeat_interval});
  set("middleman.connection-timeout", caf::timespan{connection_timeout});
}

}  // namespace troupe
