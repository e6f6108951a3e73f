/// Gathers the spans that the devices of a process played and passes them to the run, in parts that
/// stay under the size of a control message.
#include <algorithm>

#include "actors/interfaces.h"

namespace troupe {
namespace {

struct TraceState {
  TraceState() {}
  static inline const char* name = "trace";
  caf::actor run;
};

caf::behavior trace_actor(ActorOf<TraceState>* self, caf::actor run) {
  self->state.run = std::move(run);
  return {
      [self](const SpansPlayed& played) {
        for (std::size_t at = 0; at < played.spans.size(); at += list_part_count) {
          SpansPlayed part;
          part.epoch = played.epoch;
          part.step = played.step;
          const std::size_t end = std::min(played.spans.size(), at + list_part_count);
          part.spans.assign(played.spans.begin() + static_cast<std::ptrdiff_t>(at),
                            played.spans.begin() + static_cast<std::ptrdiff_t>(end));
          self->send(self->state.run, std::move(part));
        }
      },
  };
}

}  // namespace

caf::actor spawn_trace_actor(caf::actor_system& system, caf::actor run) {
  return system.spawn(trace_actor, std::move(run));
}

}  // namespace troupe
