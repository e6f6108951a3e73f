#include "planner/partition.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "planner/large_partition.h"
#include "planner/orders_and_cuts.h"
#include "planner/pricer.h"

namespace troupe {
namespace {

/// Simulated actions that one search may spend: a fraction of a second.
constexpr std::size_t action_budget = 1'500'000;
/// Up to so many devices, whole orders of them are proposed beside what large_partition.h finds.
constexpr std::uint32_t propose_limit = 40;
/// Up to so many, orders of some of the counts of devices.
constexpr std::uint32_t thinned_limit = 64;
/// Relative difference of step times below which fewer stages win.
constexpr double same_time = 1e-9;

struct Ranked {
  Seconds bound = 0;
  Candidate candidate;
};

/// The search over one problem.
class Search {
 public:
  Search(const ModelSpec& model,
         const ClusterSpec& cluster,
         const ModelProfile& profile,
         const PlanOptions& options,
         Seconds at_most)
      : cluster_(cluster),
        options_(options),
        at_most_(at_most),
        tied_(model.tied),
        pricer_(model, cluster, profile, options) {}

  PartitionSearch run() {
    const std::uint32_t most =
        std::min(pricer_.device_count(), pricer_.layers() / pricer_.chunks());
    const bool few = pricer_.device_count() <= propose_limit;
    const bool exact = few && candidate_count(most) <= exact_candidate_limit;
    if (exact) {
      for (std::uint32_t k = 1; k <= most; ++k) enumerate(k);
    } else {
      if (pricer_.chunks() == 1)
        for (Candidate& one : large_partitions(pricer_, cluster_, options_, tied_))
          consider(std::move(one));
      if (pricer_.device_count() <= thinned_limit || fitting_.empty())
        for (std::uint32_t k = 1; k <= most; k = few ? k + 1 : next_size(k, most)) propose(k);
    }
    const bool all = simulate_in_order(exact ? action_budget : action_budget / 2);
    if (!exact && few) improve();
    PartitionSearch result;
    result.complete = exact && all;
    if (best_) {
      Partition& found = result.found.emplace();
      found.stages = pricer_.stages_of(*best_);
      found.step = best_step_;
      if (second_) found.runner_up = pricer_.stages_of(*second_);
      found.runner_up_step = second_step_;
      found.exact = result.complete;
      found.candidates = fitting_.size();
      found.simulated = simulated_;
    } else {
      result.shortfall = {DeviceId{nearest_.device}, nearest_.needed, nearest_stages_};
    }
    return result;
  }

 private:
  /// How many candidates enumeration would look at (capped at 1e9).
  std::size_t candidate_count(std::uint32_t most) const {
    const std::vector<double> orders = order_counts(classes(), most);
    double count = 0;
    for (std::uint32_t k = 1; k <= most; ++k)
      count += orders[k] * binomial(pricer_.layers() - 1, k * pricer_.chunks() - 1);
    return static_cast<std::size_t>(std::min(count, 1e9));
  }

  /// Alike devices may be exchanged freely: all links are the same.
  bool interchangeable() const {
    if (!cluster_.overrides.empty()) return false;
    for (std::uint32_t a = 0; a < pricer_.device_count(); ++a)
      for (std::uint32_t b = a + 1; b < pricer_.device_count(); ++b)
        if (cluster_.crosses_processes(DeviceId{a}, DeviceId{b}) !=
            cluster_.crosses_processes(DeviceId{0}, DeviceId{1}))
          return false;
    return true;
  }

  DeviceClasses classes() const {
    DeviceClasses out(pricer_.device_count());
    const bool alike = interchangeable();
    for (std::uint32_t d = 0; d < out.size(); ++d) out[d] = alike ? pricer_.device_kind(d) : d;
    return out;
  }

  void enumerate(std::uint32_t k) {
    each_order(classes(), k, [&](const std::vector<std::uint32_t>& order) {
      each_cut(pricer_.layers(), k * pricer_.chunks(), [&](const std::vector<std::uint32_t>& cuts) {
        consider({order, cuts});
      });
    });
  }

  /// Keeps a candidate that fits, and the nearest miss.
  void consider(Candidate candidate) {
    const Pricer::Fit fit = pricer_.fit(candidate);
    if (fit.over > 0) {
      if (nearest_stages_.empty() || fit.over < nearest_.over) {
        nearest_ = fit;
        nearest_stages_ = pricer_.stages_of(candidate);
      }
      return;
    }
    const Seconds bound = pricer_.lower_bound(candidate);
    fitting_.push_back({bound, std::move(candidate)});
  }

  /// Simulates by rising bound until the bound passes the best. True if none was left out.
  bool simulate_in_order(std::size_t budget) {
    std::stable_sort(fitting_.begin(), fitting_.end(),
                     [](const Ranked& a, const Ranked& b) { return a.bound < b.bound; });
    for (const Ranked& ranked : fitting_) {
      const Seconds limit = best_ ? std::min(best_step_, at_most_) : at_most_;
      if (ranked.bound > limit * (1 + same_time)) return true;
      if (spent_ > budget) return false;
      judge(ranked.candidate);
    }
    return true;
  }

  /// Simulates; true if it is the new best.
  bool judge(const Candidate& candidate) {
    const Seconds step = pricer_.simulate(candidate);
    ++simulated_;
    spent_ += pricer_.actions(candidate);
    const auto beats = [&](const std::optional<Candidate>& other, Seconds other_step) {
      if (!other || step < other_step * (1 - same_time)) return true;
      return step <= other_step * (1 + same_time) && candidate.stage_count() < other->stage_count();
    };
    if (beats(best_, best_step_)) {
      second_ = std::move(best_);
      second_step_ = best_step_;
      best_ = candidate;
      best_step_ = step;
      return true;
    }
    if (candidate != *best_ && beats(second_, second_step_)) {
      second_ = candidate;
      second_step_ = step;
    }
    return false;
  }

  // ---- beyond enumeration ----

  Seconds block_seconds(std::uint32_t d) const { return pricer_.busy(d, 1, 2); }

  /// Counts of devices that are tried where all would be too many: each half as large again.
  static std::uint32_t next_size(std::uint32_t k, std::uint32_t most) {
    return k < most ? std::min(most, k + (k + 1) / 2) : most + 1;
  }

  /// Orders of k devices that are worth a try: the fastest and the roomiest ones, by kind.
  std::vector<std::vector<std::uint32_t>> orders_of(std::uint32_t k) const {
    std::vector<std::uint32_t> all(pricer_.device_count());
    std::iota(all.begin(), all.end(), 0u);
    const auto by_speed = [&](std::uint32_t a, std::uint32_t b) {
      return block_seconds(a) < block_seconds(b);
    };
    const auto by_memory = [&](std::uint32_t a, std::uint32_t b) {
      return cluster_.devices[a].memory > cluster_.devices[b].memory;
    };
    std::set<std::vector<std::uint32_t>> orders;
    const auto add_choice = [&](std::vector<std::uint32_t> chosen) {
      chosen.resize(k);
      std::sort(chosen.begin(), chosen.end());
      orders.insert(chosen);
      std::vector<std::vector<std::uint32_t>> groups;
      std::vector<std::uint32_t> kinds;
      for (const std::uint32_t d : chosen) {
        const auto at = std::find(kinds.begin(), kinds.end(), pricer_.device_kind(d));
        if (at == kinds.end()) {
          kinds.push_back(pricer_.device_kind(d));
          groups.push_back({d});
        } else {
          groups[static_cast<std::size_t>(at - kinds.begin())].push_back(d);
        }
      }
      std::sort(groups.begin(), groups.end());
      std::size_t tries = 0;
      do {
        std::vector<std::uint32_t> order;
        for (const auto& group : groups) order.insert(order.end(), group.begin(), group.end());
        orders.insert(order);
      } while (++tries < (all.size() <= propose_limit ? 24u : 2u) &&
               std::next_permutation(groups.begin(), groups.end()));
      for (const bool ascending : {true, false}) {
        std::stable_sort(chosen.begin(), chosen.end(), by_memory);
        if (ascending) std::reverse(chosen.begin(), chosen.end());
        orders.insert(chosen);
        std::stable_sort(chosen.begin(), chosen.end(), by_speed);
        if (ascending) std::reverse(chosen.begin(), chosen.end());
        orders.insert(chosen);
      }
    };
    std::stable_sort(all.begin(), all.end(), by_speed);
    add_choice(all);
    std::stable_sort(all.begin(), all.end(), by_memory);
    add_choice(all);
    return {orders.begin(), orders.end()};
  }

  void propose(std::uint32_t k) {
    for (const auto& order : orders_of(k)) {
      if (auto cuts = best_cuts(order, Objective::time)) consider({order, std::move(*cuts)});
      if (auto cuts = best_cuts(order, Objective::memory)) consider({order, std::move(*cuts)});
    }
  }

  enum class Objective {
    time,   ///< least busy time of the busiest stage, among those that fit
    memory  ///< least memory over (or most under) the cap
  };

  /// Dynamic programming over prefixes: best[s][l] for the first s stages holding the first l
  /// layers. With several stages a device, each may take its share of the memory.
  std::optional<std::vector<std::uint32_t>> best_cuts(const std::vector<std::uint32_t>& order,
                                                      Objective objective) const {
    constexpr double never = std::numeric_limits<double>::infinity();
    const std::uint32_t layers = pricer_.layers();
    const auto stages = static_cast<std::uint32_t>(order.size()) * pricer_.chunks();
    std::vector<std::vector<double>> best(stages + 1, std::vector<double>(layers + 1, never));
    std::vector<std::vector<std::uint32_t>> from(stages + 1,
                                                 std::vector<std::uint32_t>(layers + 1));
    best[0][0] = -never;
    const auto devices = static_cast<std::uint32_t>(order.size());
    const auto edges = pricer_.edge_bytes_of(order);
    for (std::uint32_t s = 0; s < stages; ++s) {
      const auto bytes_of = pricer_.stage_bytes_function(devices, s);
      const std::uint32_t device = order[s % order.size()];
      const auto room = static_cast<double>(cluster_.devices[device].memory) / pricer_.chunks();
      const std::uint32_t left = stages - s - 1;
      for (std::uint32_t first = s; first < layers; ++first) {
        if (best[s][first] == never) continue;
        for (std::uint32_t last = first + 1; last + left <= layers; ++last) {
          if (left == 0 && last != layers) continue;
          const Bytes bytes = bytes_of(first, last) + edges[s];
          const double over = static_cast<double>(bytes) - room;
          if (objective == Objective::time && over > 0 && pricer_.chunks() == 1) continue;
          const double cost =
              objective == Objective::time ? pricer_.busy(device, first, last) : over;
          const double value = std::max(best[s][first], cost);
          if (value < best[s + 1][last]) {
            best[s + 1][last] = value;
            from[s + 1][last] = first;
          }
        }
      }
    }
    if (best[stages][layers] == never) return std::nullopt;
    std::vector<std::uint32_t> cuts(stages + 1, layers);
    for (std::uint32_t s = stages; s > 0; --s) cuts[s - 1] = from[s][cuts[s]];
    return cuts;
  }

  /// Candidates one cut away.
  std::vector<Candidate> shifted(const Candidate& base) const {
    std::vector<Candidate> list;
    for (std::size_t i = 1; i + 1 < base.cuts.size(); ++i)
      for (const int by : {-1, 1}) {
        Candidate moved = base;
        moved.cuts[i] += static_cast<std::uint32_t>(by);
        if (moved.cuts[i] > moved.cuts[i - 1] && moved.cuts[i] < moved.cuts[i + 1])
          list.push_back(std::move(moved));
      }
    return list;
  }

  /// Two unlike devices exchanged, their layers with them where that keeps the cuts.
  std::vector<Candidate> exchanged(const Candidate& base) const {
    std::vector<Candidate> list;
    for (std::size_t a = 0; a < base.order.size(); ++a)
      for (std::size_t b = a + 1; b < base.order.size(); ++b) {
        if (pricer_.device_kind(base.order[a]) == pricer_.device_kind(base.order[b])) continue;
        Candidate moved = base;
        std::swap(moved.order[a], moved.order[b]);
        list.push_back(moved);
        if (pricer_.chunks() > 1) continue;
        // Each device keeps its number of layers.
        const std::uint32_t of_a = base.cuts[a + 1] - base.cuts[a];
        const std::uint32_t of_b = base.cuts[b + 1] - base.cuts[b];
        for (std::size_t i = a + 1; i <= b; ++i) moved.cuts[i] = base.cuts[i] + of_b - of_a;
        if (of_a != of_b) list.push_back(std::move(moved));
      }
    return list;
  }

  /// One device dropped, cuts made anew.
  std::vector<Candidate> without_one(const Candidate& base) const {
    std::vector<Candidate> list;
    for (std::size_t i = 0; i < base.order.size() && base.order.size() > 1; ++i) {
      Candidate moved = base;
      moved.order.erase(moved.order.begin() + static_cast<std::ptrdiff_t>(i));
      auto cuts = best_cuts(moved.order, Objective::time);
      if (!cuts) continue;
      moved.cuts = std::move(*cuts);
      list.push_back(std::move(moved));
    }
    return list;
  }

  /// Simulates those that may be better than the best; true at the first that is.
  bool any_better(const std::vector<Candidate>& list) {
    for (const Candidate& next : list) {
      if (spent_ >= action_budget) return false;
      if (pricer_.fit(next).over > 0 || pricer_.lower_bound(next) > best_step_) continue;
      if (judge(next)) return true;
    }
    return false;
  }

  /// Walks from the best to better neighbours until there is none or the budget is spent. Dropping
  /// devices costs a search for cuts each and is tried twice at most.
  void improve() {
    if (!best_) return;
    for (int drops = 0; drops < 2; ++drops) {
      while (any_better(shifted(*best_)) || any_better(exchanged(*best_))) continue;
      if (!any_better(without_one(*best_))) return;
    }
  }

  const ClusterSpec& cluster_;
  const PlanOptions& options_;
  Seconds at_most_;
  bool tied_;
  Pricer pricer_;
  std::vector<Ranked> fitting_;
  std::optional<Candidate> best_, second_;
  Seconds best_step_ = 0;
  Seconds second_step_ = 0;
  std::size_t simulated_ = 0;
  std::size_t spent_ = 0;
  Pricer::Fit nearest_;
  std::vector<StagePlan> nearest_stages_;
};

}  // namespace

PartitionSearch search_partition(const ModelSpec& model,
                                 const ClusterSpec& cluster,
                                 const ModelProfile& profile,
                                 const PlanOptions& options,
                                 Seconds at_most) {
  return Search(model, cluster, profile, options, at_most).run();
}

StageMap stage_map_of(const std::vector<StagePlan>& stages,
                      const ClusterSpec& cluster,
                      const ModelSpec& model,
                      const PlanOptions& options) {
  StageMap map;
  for (const StagePlan& stage : stages) map.device_of_stage.push_back(stage.device);
  map.microbatch_count = options.shape.microbatch_count;
  map.device_count = static_cast<std::uint32_t>(cluster.devices.size());
  map.tied = model.tied;
  map.transfer_slots = options.transfer_slots;
  return map;
}

}  // namespace troupe
