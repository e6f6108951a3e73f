#include "planner/balanced_memory.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "planner/pricer.h"
#include "planner/strategies.h"

namespace troupe {
namespace {

/// best[l]: the least largest share of memory of the stages so far, which hold the first l layers.
struct Split {
  double share = std::numeric_limits<double>::infinity();
  Seconds slowest = 0;
  std::uint32_t from = 0;
};

/// The least largest share that stages as long as their devices allow come to: an upper bound.
double greedy_share(const Pricer& pricer,
                    const ClusterSpec& cluster,
                    const std::vector<std::uint32_t>& order,
                    const std::vector<Bytes>& edges) {
  const std::uint32_t layers = pricer.layers();
  const auto stages = static_cast<std::uint32_t>(order.size());
  const auto fits = [&](double share) {
    std::uint32_t first = 0;
    for (std::uint32_t s = 0; s < stages; ++s) {
      const auto bytes_of = pricer.stage_bytes_function(stages, s);
      const double room = share * static_cast<double>(cluster.devices[order[s]].memory);
      const std::uint32_t left = stages - s - 1;
      // The last of the layers up to which it fits, by halving.
      std::uint32_t low = first, high = layers - left;
      if (left == 0) low = layers - 1;
      while (low < high) {
        const std::uint32_t last = (low + high + 1) / 2;
        if (static_cast<double>(bytes_of(first, last) + edges[s]) <= room)
          low = last;
        else
          high = last - 1;
      }
      if (low == first || (left == 0 && low < layers)) return false;
      first = low;
    }
    return true;
  };
  double low = 0, high = 1;
  while (!fits(high)) high *= 2;
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return high;
}

Candidate balanced_cuts(const Pricer& pricer,
                        const ClusterSpec& cluster,
                        const std::vector<std::uint32_t>& order,
                        double& share) {
  const std::uint32_t layers = pricer.layers();
  const auto stages = static_cast<std::uint32_t>(order.size());
  const auto edges = pricer.edge_bytes_of(order);
  std::vector<std::vector<Split>> best(stages + 1, std::vector<Split>(layers + 1));
  best[0][0].share = 0;
  const double most = greedy_share(pricer, cluster, order, edges);
  for (std::uint32_t s = 0; s < stages; ++s) {
    const auto bytes_of = pricer.stage_bytes_function(stages, s);
    const auto room = static_cast<double>(cluster.devices[order[s]].memory);
    const std::uint32_t left = stages - s - 1;
    for (std::uint32_t first = s; first < layers; ++first) {
      const Split& before = best[s][first];
      if (before.share == std::numeric_limits<double>::infinity()) continue;
      for (std::uint32_t last = left == 0 ? layers : first + 1; last + left <= layers; ++last) {
        const double own = static_cast<double>(bytes_of(first, last) + edges[s]) / room;
        if (own > most * (1 + 1e-12)) break;  // more layers take more
        const Split made{std::max(before.share, own),
                         std::max(before.slowest, pricer.busy(order[s], first, last)), first};
        Split& known = best[s + 1][last];
        if (made.share < known.share || (made.share == known.share && made.slowest < known.slowest))
          known = made;
      }
    }
  }
  share = best[stages][layers].share;
  Candidate made{order, std::vector<std::uint32_t>(stages + 1, layers)};
  for (std::uint32_t s = stages; s > 0; --s) made.cuts[s - 1] = best[s][made.cuts[s]].from;
  return made;
}

}  // namespace

std::vector<StagePlan> balanced_memory_stages(const PlanRequest& request) {
  constexpr std::uint32_t most_counts = 24;
  const Pricer pricer(request.model, request.cluster, request.profile, request.options);
  std::vector<std::uint32_t> order(pricer.device_count());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return request.cluster.devices[a].memory > request.cluster.devices[b].memory;
  });
  const std::uint32_t most = std::min(pricer.device_count(), pricer.layers());
  const std::uint32_t by = (most + most_counts - 1) / most_counts;
  Candidate best;
  double least = std::numeric_limits<double>::infinity();
  for (std::uint32_t k = 1; k <= most; k = k == most ? most + 1 : std::min(most, k + by)) {
    double share = 0;
    Candidate made =
        balanced_cuts(pricer, request.cluster, {order.begin(), order.begin() + k}, share);
    if (share >= least - 0.01) continue;
    least = share;
    best = std::move(made);
  }
  return pricer.stages_of(best);
}

}  // namespace troupe
