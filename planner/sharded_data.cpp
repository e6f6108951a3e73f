#include "planner/sharded_data.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <vector>

#include "planner/result.h"

namespace troupe {
namespace {

/// One pass through one layer.
struct Use {
  Seconds arithmetic = 0, gather = 0, scatter = 0;
};

std::vector<Use> uses_of(std::span<const ShardedLayer> layers, const ShardedSchedule& schedule) {
  std::vector<Use> out;
  for (std::uint64_t m = 0; m < schedule.microbatches; ++m) {
    const bool scattered = schedule.scattered_each || m + 1 == schedule.microbatches;
    for (const ShardedLayer& layer : layers) out.push_back({layer.forward, layer.gather, 0});
    for (std::size_t i = layers.size(); i-- > 0;)
      out.push_back({layers[i].backward, schedule.gathered_twice ? layers[i].gather : 0,
                     scattered ? layers[i].scatter : 0});
  }
  return out;
}

/// Carries one message after the other.
class Link {
 public:
  /// When a message of this length that was issued at `now` is through.
  Seconds carry(Seconds now, Seconds length) {
    if (length == 0) return now;
    free_ = std::max(free_, now) + length;
    return free_;
  }
  Seconds free_at() const { return free_; }

 private:
  Seconds free_ = 0;
};

/// Microbatches that are played; by then each takes as long as the one before.
constexpr std::uint64_t most_played = 16;

ShardedSeconds played_seconds(std::span<const ShardedLayer> layers,
                              const ShardedSchedule& schedule) {
  const std::vector<Use> uses = uses_of(layers, schedule);
  Link link;
  std::deque<Seconds> gathered;  // of the uses from the next one on
  std::size_t issued = 0;
  const auto gather_until = [&](std::size_t last, Seconds now) {
    for (; issued < uses.size() && issued <= last; ++issued)
      gathered.push_back(link.carry(now, uses[issued].gather));
  };
  ShardedSeconds out;
  Seconds now = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    gather_until(i, now);
    now = std::max(now, gathered.front());
    gathered.pop_front();
    gather_until(i + schedule.prefetch, now);
    now += uses[i].arithmetic;
    out.arithmetic += uses[i].arithmetic;
    link.carry(now, uses[i].scatter);
  }
  out.exposed = std::max(now, link.free_at()) - out.arithmetic;
  return out;
}

}  // namespace

ShardedSeconds sharded_step_seconds(std::span<const ShardedLayer> layers,
                                    const ShardedSchedule& schedule) {
  EXPECTS(schedule.microbatches >= 1);
  if (schedule.microbatches <= most_played) return played_seconds(layers, schedule);
  ShardedSchedule part = schedule;
  part.microbatches = most_played - 1;
  const ShardedSeconds shorter = played_seconds(layers, part);
  part.microbatches = most_played;
  ShardedSeconds out = played_seconds(layers, part);
  const auto more = static_cast<double>(schedule.microbatches - most_played);
  out.exposed += more * (out.exposed - shorter.exposed);
  out.arithmetic += more * (out.arithmetic - shorter.arithmetic);
  return out;
}

double gathered_parameters(std::span<const double> layers, std::uint64_t prefetch) {
  const std::size_t held = std::min<std::size_t>(prefetch + 1, layers.size());
  double most = 0;
  for (std::size_t first = 0; first + held <= layers.size(); ++first)
    most = std::max(
        most, std::accumulate(layers.begin() + static_cast<std::ptrdiff_t>(first),
                              layers.begin() + static_cast<std::ptrdiff_t>(first + held), 0.0));
  return most;
}

}  // namespace troupe
