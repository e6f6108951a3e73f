#include "planner/virtual_workers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "planner/printable.h"

namespace troupe {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::array<std::string_view, worker_allocation_count> allocation_names{"np", "ed", "hd",
                                                                                 "single"};

Error invalid(std::string text) {
  return {ErrorCode::invalid_input, std::move(text)};
}

bool bad(double value) {
  return !(value >= 0) || !std::isfinite(value);
}

Seconds link_seconds(const LinkSpec& link, double bytes) {
  return link.latency + (link.bandwidth > 0 ? bytes / link.bandwidth : 0);
}

Status check(const WorkerCluster& cluster, const WorkerCosts& costs) {
  if (cluster.devices.empty()) return invalid("there is no device to train on");
  if (costs.layers.empty()) return invalid("the model has no layers");
  for (const LinkSpec* link : {&cluster.within_node, &cluster.between_nodes})
    if (bad(link->latency) || bad(link->bandwidth))
      return invalid("a link's latency and bandwidth must be finite and not negative");
  for (std::size_t i = 0; i < cluster.devices.size(); ++i) {
    const WorkerDevice& device = cluster.devices[i];
    if (device.kind >= costs.seconds.size())
      return invalid(fmt::format("device {} is of kind {}, but there are costs for {} kinds", i,
                                 device.kind, costs.seconds.size()));
    if (bad(device.memory_bytes))
      return invalid(fmt::format("device {} has {} bytes of memory", i, device.memory_bytes));
  }
  for (std::size_t kind = 0; kind < costs.seconds.size(); ++kind) {
    const auto& row = costs.seconds[kind];
    if (row.size() != costs.layers.size())
      return invalid(fmt::format("kind {} has times of {} layers; the model has {}", kind,
                                 row.size(), costs.layers.size()));
    if (std::any_of(row.begin(), row.end(), bad))
      return invalid(
          fmt::format("kind {}: the times of its layers must be finite and not negative", kind));
  }
  for (std::size_t i = 0; i < costs.layers.size(); ++i) {
    const WorkerLayer& layer = costs.layers[i];
    if (bad(layer.state_bytes) || bad(layer.gradient_bytes) || bad(layer.kept_bytes) ||
        bad(layer.output_bytes))
      return invalid(fmt::format("layer {}: its bytes must be finite and not negative", i));
  }
  return {};
}

/// Sums over layers [first, last) by differences.
class Sums {
 public:
  template <class Value>
  Sums(std::size_t count, const Value& value) : sums_(count + 1, 0.0) {
    for (std::size_t i = 0; i < count; ++i) sums_[i + 1] = sums_[i] + value(i);
  }
  double of(std::size_t first, std::size_t last) const { return sums_[last] - sums_[first]; }

 private:
  std::vector<double> sums_;
};

/// Devices that nothing tells apart.
struct DeviceClass {
  WorkerDevice device;
  std::vector<std::uint32_t> members;
};

/// Where the stage before another one stands.
enum Neighbour : std::uint8_t { near, far, none };
constexpr std::size_t neighbour_count = 3;

/// What stages cost on the classes of one worker's devices.
class StageCosts {
 public:
  StageCosts(const WorkerCluster& cluster,
             const WorkerCosts& costs,
             const std::vector<std::uint32_t>& members,
             std::uint32_t in_flight)
      : cluster_(cluster),
        costs_(costs),
        in_flight_(in_flight),
        state_(layers(), [&](std::size_t i) { return costs.layers[i].state_bytes; }),
        kept_(layers(), [&](std::size_t i) { return costs.layers[i].kept_bytes; }) {
    std::map<std::tuple<double, std::uint32_t, std::uint32_t>, DeviceClass> found;
    for (const std::uint32_t member : members) {
      const WorkerDevice& device = cluster.devices[member];
      DeviceClass& one = found[{-device.memory_bytes, device.kind, device.node.value}];
      one.device = device;
      one.members.push_back(member);
    }
    for (auto& [key, one] : found) {
      const auto& row = costs.seconds[one.device.kind];
      seconds_.emplace_back(layers(), [&](std::size_t i) { return row[i]; });
      classes_.push_back(std::move(one));
    }
  }

  std::size_t layers() const { return costs_.layers.size(); }
  /// The largest memory first.
  const std::vector<DeviceClass>& classes() const { return classes_; }

  /// Arithmetic of layers [first, last) with `after` stages behind; infinity where they do not fit.
  Seconds compute(std::size_t one, std::size_t first, std::size_t last, std::size_t after) const {
    const auto held = static_cast<double>(std::min<std::size_t>(in_flight_, after + 1));
    const double bytes = state_.of(first, last) + held * kept_.of(first, last);
    const double room = classes_[one].device.memory_bytes;
    return bytes > room * (1 + 1e-12) ? infinity : seconds_[one].of(first, last);
  }
  /// Of what crosses the border before layer `cut`, one way.
  Seconds border(Neighbour place, std::size_t cut) const {
    return link_seconds(place == near ? cluster_.within_node : cluster_.between_nodes,
                        costs_.layers[cut - 1].output_bytes);
  }
  Neighbour neighbour(std::size_t one, std::size_t other) const {
    return classes_[one].device.node == classes_[other].device.node ? near : far;
  }

 private:
  const WorkerCluster& cluster_;
  const WorkerCosts& costs_;
  std::uint32_t in_flight_;
  Sums state_, kept_;
  std::vector<Sums> seconds_;  ///< by class
  std::vector<DeviceClass> classes_;
};

/// Classes of the stages, in pipeline order, and where they begin.
struct Split {
  Seconds slowest = infinity;
  std::vector<std::size_t> classes, begins;
};

/// Suffixes of the model on multisets of device classes. The state of a suffix: what it has used,
/// where it begins, the class of its first stage, and whether the stage before is near.
class OrderSearch {
 public:
  explicit OrderSearch(const StageCosts& costs) : costs_(costs), count_(costs.classes().size()) {
    for (const DeviceClass& one : costs.classes()) {
      radix_.push_back(sets_);
      sets_ *= one.members.size() + 1;
    }
  }

  static double states(const StageCosts& costs) {
    double sets = 1;
    for (const DeviceClass& one : costs.classes())
      sets *= static_cast<double>(one.members.size()) + 1;
    return sets * static_cast<double>(costs.classes().size() * (costs.layers() + 1)) *
           neighbour_count;
  }

  Split run() {
    cells_.assign(sets_ * (costs_.layers() + 1) * count_ * neighbour_count, Cell{});
    for (std::size_t one = 0; one < count_; ++one)
      for (std::size_t first = 0; first < costs_.layers(); ++first)
        settle(radix_[one], first, one, costs_.compute(one, first, costs_.layers(), 0), {});
    for (std::size_t used = 1; used < sets_; ++used)
      for (std::size_t before = 0; before < count_; ++before)
        if (used_of(used, before) < costs_.classes()[before].members.size()) extend(used, before);
    Split best;
    std::size_t set = 0, top = 0;
    for (std::size_t used = 1; used < sets_; ++used)
      for (std::size_t one = 0; one < count_; ++one)
        if (const Seconds value = at(used, 0, one, none).slowest; value < best.slowest) {
          best.slowest = value;
          set = used;
          top = one;
        }
    if (best.slowest < infinity) trace(best, set, top);
    return best;
  }

 private:
  /// A suffix: its slowest stage, and the begin and class of its second one (begin 0: there is
  /// none).
  struct Cell {
    Seconds slowest = infinity;
    std::uint32_t next_begin = 0, next_class = 0;
  };

  Cell& at(std::size_t used, std::size_t first, std::size_t one, Neighbour before) {
    return cells_[((used * (costs_.layers() + 1) + first) * count_ + one) * neighbour_count +
                  before];
  }

  /// A suffix whose first stage takes `busy` without what it receives from the stage before, and
  /// the suffix behind that stage.
  void settle(std::size_t used, std::size_t first, std::size_t one, Seconds busy, Cell rest) {
    if (rest.next_begin == 0) rest.slowest = 0;
    const auto offer = [&](Neighbour before, Seconds received) {
      Cell& cell = at(used, first, one, before);
      const Seconds slowest = std::max(busy + received, rest.slowest);
      if (slowest < cell.slowest) cell = {slowest, rest.next_begin, rest.next_class};
    };
    if (first == 0) return offer(none, 0);
    offer(near, costs_.border(near, first));
    offer(far, costs_.border(far, first));
  }

  /// Puts a stage on this class before each suffix that uses this set.
  void extend(std::size_t used, std::size_t before) {
    std::size_t stages = 0;
    for (std::size_t one = 0; one < count_; ++one) stages += used_of(used, one);
    for (std::size_t cut = 1; cut < costs_.layers(); ++cut)
      for (const Neighbour place : {near, far}) {
        Cell rest;
        for (std::size_t one = 0; one < count_; ++one)
          if (costs_.neighbour(before, one) == place)
            if (const Seconds value = at(used, cut, one, place).slowest; value < rest.slowest)
              rest = {value, static_cast<std::uint32_t>(cut), static_cast<std::uint32_t>(one)};
        if (rest.slowest == infinity) continue;
        for (std::size_t first = cut; first-- > 0;) {
          const Seconds busy = costs_.compute(before, first, cut, stages);
          if (busy == infinity) break;
          settle(used + radix_[before], first, before, busy + costs_.border(place, cut), rest);
        }
      }
  }

  std::size_t used_of(std::size_t used, std::size_t one) const {
    return used / radix_[one] % (costs_.classes()[one].members.size() + 1);
  }

  void trace(Split& split, std::size_t used, std::size_t one) {
    std::size_t first = 0;
    Neighbour before = none;
    while (true) {
      split.classes.push_back(one);
      split.begins.push_back(first);
      const Cell cell = at(used, first, one, before);
      if (cell.next_begin == 0) return;
      used -= radix_[one];
      before = costs_.neighbour(one, cell.next_class);
      first = cell.next_begin;
      one = cell.next_class;
    }
  }

  const StageCosts& costs_;
  std::size_t count_;
  std::size_t sets_ = 1;
  std::vector<std::size_t> radix_;
  std::vector<Cell> cells_;
};

/// All devices in one order, none left out; the same stage times.
Split split_in_order(const StageCosts& costs) {
  std::vector<std::size_t> order;
  for (std::size_t one = 0; one < costs.classes().size(); ++one)
    order.insert(order.end(), costs.classes()[one].members.size(), one);
  const std::size_t layers = costs.layers(), stages = std::min(order.size(), layers);
  order.resize(stages);
  // best[s][a]: stages s.. over layers a.., with what stage s receives from the one before.
  std::vector<std::vector<Seconds>> best(stages, std::vector<Seconds>(layers + 1, infinity));
  std::vector<std::vector<std::size_t>> ends(stages, std::vector<std::size_t>(layers + 1, layers));
  for (std::size_t s = stages; s-- > 0;)
    for (std::size_t first = s == 0 ? 0 : 1; first < (s == 0 ? 1 : layers); ++first) {
      const Seconds before =
          s > 0 ? costs.border(costs.neighbour(order[s - 1], order[s]), first) : 0;
      for (std::size_t last = first + 1; last <= layers; ++last) {
        if ((s + 1 == stages) != (last == layers)) continue;
        const Seconds own =
            costs.compute(order[s], first, last, stages - s - 1) + before +
            (last < layers ? costs.border(costs.neighbour(order[s], order[s + 1]), last) : 0);
        const Seconds slowest = std::max(own, last < layers ? best[s + 1][last] : 0);
        if (slowest < best[s][first]) {
          best[s][first] = slowest;
          ends[s][first] = last;
        }
      }
    }
  Split split;
  split.slowest = best[0][0];
  for (std::size_t s = 0, first = 0; s < stages && split.slowest < infinity; ++s) {
    split.classes.push_back(order[s]);
    split.begins.push_back(first);
    first = ends[s][first];
  }
  return split;
}

VirtualWorker worker_of(const StageCosts& costs,
                        const Split& split,
                        const std::vector<std::uint32_t>& members,
                        std::uint32_t in_flight) {
  VirtualWorker worker;
  worker.slowest = split.slowest;
  worker.in_flight = in_flight;
  std::vector<std::size_t> taken(costs.classes().size());
  std::set<std::uint32_t> unused(members.begin(), members.end());
  const std::size_t stages = split.classes.size();
  for (std::size_t s = 0; s < stages; ++s) {
    const std::size_t one = split.classes[s];
    const std::size_t first = split.begins[s];
    const std::size_t last = s + 1 < stages ? split.begins[s + 1] : costs.layers();
    const std::uint32_t device = costs.classes()[one].members[taken[one]++];
    unused.erase(device);
    worker.stages.push_back(
        {device, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(last)});
    worker.round_trip += costs.compute(one, first, last, stages - s - 1);
    // Both ways of each border, each counted once.
    if (s + 1 < stages)
      worker.round_trip += 2 * costs.border(costs.neighbour(one, split.classes[s + 1]), last);
  }
  worker.unused.assign(unused.begin(), unused.end());
  return worker;
}

/// Nodes of one kind's devices, and the devices by node.
using KindDevices = std::vector<std::vector<std::uint32_t>>;  ///< by kind

KindDevices devices_by_kind(const WorkerCluster& cluster, const WorkerCosts& costs) {
  KindDevices kinds(costs.seconds.size());
  for (std::uint32_t i = 0; i < cluster.devices.size(); ++i)
    kinds[cluster.devices[i].kind].push_back(i);
  // The fastest first; kinds that are not there drop out.
  std::vector<std::size_t> order;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind)
    if (!kinds[kind].empty()) order.push_back(kind);
  const auto whole = [&](std::size_t kind) {
    return std::accumulate(costs.seconds[kind].begin(), costs.seconds[kind].end(), 0.0);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return whole(a) < whole(b); });
  KindDevices sorted;
  for (const std::size_t kind : order) sorted.push_back(std::move(kinds[kind]));
  return sorted;
}

/// Deals the devices of these kinds to so many workers.
void deal(const KindDevices& kinds,
          std::size_t workers,
          std::vector<std::vector<std::uint32_t>>& out) {
  const std::size_t begin = out.size();
  out.resize(begin + workers);
  for (const auto& devices : kinds) {
    const std::size_t each = devices.size() / workers;
    for (std::size_t i = 0; i < devices.size(); ++i) out[begin + i / each].push_back(devices[i]);
  }
  for (std::size_t w = begin; w < out.size(); ++w) std::sort(out[w].begin(), out[w].end());
}

std::size_t node_count(const WorkerCluster& cluster, const KindDevices& kinds) {
  std::set<NodeId> nodes;
  for (const auto& devices : kinds)
    for (const std::uint32_t device : devices) nodes.insert(cluster.devices[device].node);
  return nodes.size();
}

std::size_t common_divisor(const KindDevices& kinds) {
  std::size_t divisor = 0;
  for (const auto& devices : kinds) divisor = std::gcd(divisor, devices.size());
  return divisor;
}

Seconds exchange_seconds(const WorkerCluster& cluster,
                         const WorkerCosts& costs,
                         const std::vector<VirtualWorker>& workers) {
  if (workers.size() < 2) return 0;
  std::vector<std::set<NodeId>> holders(costs.layers.size());
  std::set<NodeId> nodes;
  const auto each_layer = [&](const auto& visit) {
    for (const VirtualWorker& worker : workers)
      for (const WorkerStage& stage : worker.stages)
        for (std::uint32_t layer = stage.first; layer < stage.last; ++layer)
          visit(stage.device, layer);
  };
  each_layer([&](std::uint32_t device, std::uint32_t layer) {
    holders[layer].insert(cluster.devices[device].node);
    nodes.insert(cluster.devices[device].node);
  });
  const double remote = 1 - 1 / static_cast<double>(nodes.size());
  std::map<NodeId, double> network;      // bytes
  std::map<std::uint32_t, double> near;  // by device
  each_layer([&](std::uint32_t device, std::uint32_t layer) {
    const double bytes = 2 * costs.layers[layer].gradient_bytes;
    if (holders[layer].size() == 1) {
      near[device] += bytes;
    } else {
      network[cluster.devices[device].node] += remote * bytes;
    }
  });
  Seconds longest = 0;
  for (const auto& [node, bytes] : network)
    longest = std::max(longest, link_seconds(cluster.between_nodes, bytes));
  for (const auto& [device, bytes] : near)
    longest = std::max(longest, link_seconds(cluster.within_node, bytes));
  return longest;
}

/// The worker with the shortest period over its microbatches in flight. More in flight take more
/// memory, so no period is below the slowest stage with one; as many as there are devices hide the
/// way through all of them.
Result<VirtualWorker> fastest_worker(const WorkerCluster& cluster,
                                     const WorkerCosts& costs,
                                     const std::vector<std::uint32_t>& members) {
  auto best = split_worker(cluster, costs, members, 1);
  if (!best) return best;
  const Seconds least = best->slowest;
  for (auto in_flight = static_cast<std::uint32_t>(members.size()); in_flight > 1; --in_flight) {
    auto worker = split_worker(cluster, costs, members, in_flight);
    if (worker && worker->period() < best->period()) best = std::move(worker);
    if (best->period() <= least) break;
  }
  return best;
}

}  // namespace

std::string_view to_string(WorkerAllocation allocation) {
  return allocation_names[static_cast<std::size_t>(allocation)];
}

Result<WorkerAllocation> parse_worker_allocation(std::string_view text) {
  for (std::size_t i = 0; i < worker_allocation_count; ++i)
    if (text == allocation_names[i]) return static_cast<WorkerAllocation>(i);
  return invalid(fmt::format("\"{}\" is no allocation of virtual workers; there are {}",
                             printable(std::string(text.substr(0, 40))),
                             fmt::join(allocation_names, ", ")));
}

Seconds VirtualWorker::period() const {
  return std::max(slowest, round_trip / in_flight);
}

Result<std::vector<std::vector<std::uint32_t>>> allocate_workers(const WorkerCluster& cluster,
                                                                 const WorkerCosts& costs,
                                                                 WorkerAllocation allocation) {
  TROUPE_TRY(check(cluster, costs));
  const KindDevices kinds = devices_by_kind(cluster, costs);
  std::vector<std::vector<std::uint32_t>> out;
  switch (allocation) {
    case WorkerAllocation::node_partition: {
      std::map<NodeId, std::vector<std::uint32_t>> nodes;
      for (std::uint32_t i = 0; i < cluster.devices.size(); ++i)
        nodes[cluster.devices[i].node].push_back(i);
      for (auto& [node, devices] : nodes) out.push_back(std::move(devices));
      break;
    }
    case WorkerAllocation::equal_distribution: deal(kinds, common_divisor(kinds), out); break;
    case WorkerAllocation::hybrid_distribution:
      for (std::size_t i = 0; 2 * i < kinds.size(); ++i) {
        KindDevices pair{kinds[i]};
        if (kinds.size() - 1 - i != i) pair.push_back(kinds[kinds.size() - 1 - i]);
        const std::size_t divisor = common_divisor(pair);
        std::size_t workers = std::min(node_count(cluster, pair), divisor);
        while (divisor % workers != 0) --workers;
        deal(pair, workers, out);
      }
      break;
    case WorkerAllocation::single: deal(kinds, 1, out); break;
  }
  return out;
}

Result<VirtualWorker> split_worker(const WorkerCluster& cluster,
                                   const WorkerCosts& costs,
                                   const std::vector<std::uint32_t>& members,
                                   std::uint32_t in_flight) {
  TROUPE_TRY(check(cluster, costs));
  if (members.empty()) return invalid("a virtual worker has no device");
  if (in_flight == 0) return invalid("a virtual worker has no microbatch in flight");
  std::set<std::uint32_t> seen;
  for (const std::uint32_t member : members)
    if (member >= cluster.devices.size() || !seen.insert(member).second)
      return invalid(fmt::format("device {} is named twice or not one of the {} there are", member,
                                 cluster.devices.size()));
  const StageCosts stages(cluster, costs, members, in_flight);
  const bool exact = OrderSearch::states(stages) <= static_cast<double>(exact_worker_limit);
  const Split split = exact ? OrderSearch(stages).run() : split_in_order(stages);
  if (split.slowest == infinity)
    return Error{ErrorCode::does_not_fit,
                 fmt::format("the model does not fit the {} devices of a virtual worker with {} "
                             "microbatches in flight",
                             members.size(), in_flight)};
  return worker_of(stages, split, members, in_flight);
}

std::vector<std::uint32_t> share_microbatches(std::uint32_t total,
                                              const std::vector<Seconds>& fills,
                                              const std::vector<Seconds>& periods) {
  EXPECTS(!periods.empty() && fills.size() == periods.size());
  std::vector<std::uint32_t> shares(periods.size());
  for (std::uint32_t i = 0; i < total; ++i) {
    std::size_t first = 0;
    const auto end = [&](std::size_t w) { return fills[w] + (shares[w] + 1) * periods[w]; };
    for (std::size_t w = 1; w < periods.size(); ++w)
      if (end(w) < end(first)) first = w;
    ++shares[first];
  }
  return shares;
}

Result<WorkerPlan> plan_workers(const WorkerCluster& cluster,
                                const WorkerCosts& costs,
                                WorkerAllocation allocation,
                                std::uint32_t microbatches) {
  if (microbatches == 0) return invalid("a step has no microbatches");
  auto groups = allocate_workers(cluster, costs, allocation);
  if (!groups) return groups.error();
  WorkerPlan plan;
  plan.allocation = allocation;
  std::vector<Seconds> fills, periods;
  for (const auto& members : *groups) {
    auto worker = fastest_worker(cluster, costs, members);
    if (!worker) return worker.error();
    periods.push_back(worker->period());
    fills.push_back(worker->round_trip - worker->period());
    plan.workers.push_back(std::move(*worker));
  }
  plan.synchronise = exchange_seconds(cluster, costs, plan.workers);
  const auto shares = share_microbatches(microbatches, fills, periods);
  for (std::size_t w = 0; w < plan.workers.size(); ++w) {
    VirtualWorker& worker = plan.workers[w];
    worker.share = shares[w];
    if (shares[w] > 0) plan.step = std::max(plan.step, fills[w] + shares[w] * periods[w]);
    const Seconds wave = std::max(worker.in_flight * periods[w], plan.synchronise);
    plan.microbatches_per_second += wave > 0 ? worker.in_flight / wave : 0;
  }
  plan.step += plan.synchronise;
  return plan;
}

Result<WorkerPlan> best_workers(const WorkerCluster& cluster,
                                const WorkerCosts& costs,
                                std::uint32_t microbatches) {
  std::optional<WorkerPlan> best;
  Error error;
  for (std::size_t i = 0; i < worker_allocation_count; ++i) {
    auto plan = plan_workers(cluster, costs, static_cast<WorkerAllocation>(i), microbatches);
    if (!plan) {
      error = plan.error();
    } else if (!best || plan->step < best->step) {
      best = std::move(*plan);
    }
  }
  if (!best) return error;
  return std::move(*best);
}

}  // namespace troupe
