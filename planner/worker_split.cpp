#include "planner/worker_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "planner/counted.h"
#include "planner/step_costs.h"

namespace troupe {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

Error invalid(std::string text) {
  return {ErrorCode::invalid_input, std::move(text)};
}

bool bad(double value) {
  return !(value >= 0) || !std::isfinite(value);
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

  /// Arithmetic of layers [first, last).
  Seconds arithmetic(std::size_t one, std::size_t first, std::size_t last) const {
    return seconds_[one].of(first, last);
  }
  /// The same with `after` stages behind, the next one at `next`; infinity where they do not fit.
  Seconds compute(std::size_t one,
                  std::size_t first,
                  std::size_t last,
                  std::size_t after,
                  Neighbour next) const {
    const double room = classes_[one].device.memory_bytes;
    const bool fits = bytes(first, last, after, next) <= room * (1 + 1e-12);
    return fits ? arithmetic(one, first, last) : infinity;
  }
  /// Of what crosses the border before layer `cut`, one way.
  Seconds border(Neighbour place, std::size_t cut) const {
    return transfer_seconds(place == near ? cluster_.within_node : cluster_.between_nodes,
                            costs_.layers[cut - 1].output_bytes);
  }
  Neighbour neighbour(std::size_t one, std::size_t other) const {
    return classes_[one].device.node == classes_[other].device.node ? near : far;
  }

 private:
  double bytes(std::size_t first, std::size_t last, std::size_t after, Neighbour next) const {
    if (costs_.stage_bytes)
      return costs_.stage_bytes({static_cast<std::uint32_t>(first),
                                 static_cast<std::uint32_t>(last),
                                 static_cast<std::uint32_t>(after), in_flight_, next == far});
    const auto held = static_cast<double>(std::min<std::size_t>(in_flight_, after + 1));
    return state_.of(first, last) + held * kept_.of(first, last);
  }

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
  /// Looks for splits with at most so many stages whose slowest stage takes `known` at most.
  OrderSearch(const StageCosts& costs, std::size_t most_stages, Seconds known)
      : costs_(costs),
        count_(costs.classes().size()),
        most_stages_(most_stages),
        known_(known * (1 + 1e-12)) {
    for (const DeviceClass& one : costs.classes()) {
      radix_.push_back(sets_);
      sets_ *= one.members.size() + 1;
    }
  }

  /// Neither more states nor, without what `known` rules out, more stages than the limits.
  static bool in_limits(const StageCosts& costs) {
    double sets = 1;
    for (const DeviceClass& one : costs.classes())
      sets *= static_cast<double>(one.members.size()) + 1;
    const auto layers = static_cast<double>(costs.layers());
    const double tops = sets * static_cast<double>(costs.classes().size());
    return tops * (layers + 1) * neighbour_count <= exact_worker_states &&
           tops * layers * layers <= exact_worker_steps;
  }

  Split run() {
    cells_.assign(sets_ * (costs_.layers() + 1) * count_ * neighbour_count, Cell{});
    for (std::size_t one = 0; one < count_; ++one)
      for (std::size_t first = 0; first < costs_.layers(); ++first)
        settle(radix_[one], first, one, costs_.compute(one, first, costs_.layers(), 0, none), {});
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
      if (slowest < cell.slowest && slowest <= known_)
        cell = {slowest, rest.next_begin, rest.next_class};
    };
    if (first == 0) return offer(none, 0);
    offer(near, costs_.border(near, first));
    offer(far, costs_.border(far, first));
  }

  /// Puts a stage on this class before each suffix that uses this set.
  void extend(std::size_t used, std::size_t before) {
    std::size_t stages = 0;
    for (std::size_t one = 0; one < count_; ++one) stages += used_of(used, one);
    if (stages >= most_stages_) return;
    for (std::size_t cut = 1; cut < costs_.layers(); ++cut)
      for (const Neighbour place : {near, far}) {
        Cell rest;
        for (std::size_t one = 0; one < count_; ++one)
          if (costs_.neighbour(before, one) == place)
            if (const Seconds value = at(used, cut, one, place).slowest; value < rest.slowest)
              rest = {value, static_cast<std::uint32_t>(cut), static_cast<std::uint32_t>(one)};
        if (rest.slowest == infinity) continue;
        for (std::size_t first = cut; first-- > 0;) {
          if (costs_.arithmetic(before, first, cut) > known_) break;
          const Seconds busy = costs_.compute(before, first, cut, stages, place);
          if (busy < infinity)
            settle(used + radix_[before], first, before, busy + costs_.border(place, cut), rest);
          else if (first > 0)
            first = 1;  // a stage that begins with layer 0 may fit all the same
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
  std::size_t count_, most_stages_;
  Seconds known_;
  std::size_t sets_ = 1;
  std::vector<std::size_t> radix_;
  std::vector<Cell> cells_;
};

/// All devices in one order, none left out but beyond `most_stages`; the same stage times.
Split split_in_order(const StageCosts& costs, std::size_t most_stages) {
  std::vector<std::size_t> order;
  for (std::size_t one = 0; one < costs.classes().size(); ++one)
    order.insert(order.end(), costs.classes()[one].members.size(), one);
  const std::size_t layers = costs.layers();
  const std::size_t stages = std::min({order.size(), layers, most_stages});
  order.resize(stages);
  const auto place = [&](std::size_t s) {  // of the stage before s
    return s == 0 || s == stages ? none : costs.neighbour(order[s - 1], order[s]);
  };
  // best[s][a]: stages s.. over layers a.., with what stage s receives from the one before.
  std::vector<std::vector<Seconds>> best(stages + 1, std::vector<Seconds>(layers + 1, infinity));
  std::vector<std::vector<std::size_t>> ends(stages, std::vector<std::size_t>(layers + 1, layers));
  best[stages][layers] = 0;
  for (std::size_t s = stages; s-- > 0;) {
    const std::size_t left = stages - s - 1;
    for (std::size_t first = s; first + left < layers && (s > 0 || first == 0); ++first) {
      const Seconds before = s > 0 ? costs.border(place(s), first) : 0;
      for (std::size_t last = left == 0 ? layers : first + 1; last + left <= layers; ++last) {
        // More layers take longer, with more bytes.
        if (costs.arithmetic(order[s], first, last) >= best[s][first]) break;
        const Seconds own = costs.compute(order[s], first, last, left, place(s + 1));
        if (own == infinity) break;
        const Seconds sent = left > 0 ? costs.border(place(s + 1), last) : 0;
        const Seconds slowest = std::max(before + own + sent, best[s + 1][last]);
        if (slowest >= best[s][first]) continue;
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
    worker.round_trip += costs.arithmetic(one, first, last);
    // Both ways of each border, each counted once.
    if (s + 1 < stages)
      worker.round_trip += 2 * costs.border(costs.neighbour(one, split.classes[s + 1]), last);
  }
  worker.unused.assign(unused.begin(), unused.end());
  return worker;
}

}  // namespace

Status check_workers(const WorkerCluster& cluster, const WorkerCosts& costs) {
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

Seconds VirtualWorker::period() const {
  return std::max(slowest, round_trip / in_flight);
}

Result<VirtualWorker> split_worker(const WorkerCluster& cluster,
                                   const WorkerCosts& costs,
                                   const std::vector<std::uint32_t>& members,
                                   std::uint32_t in_flight,
                                   std::uint32_t most_stages) {
  TROUPE_TRY(check_workers(cluster, costs));
  if (members.empty() || most_stages == 0) return invalid("a virtual worker has no device");
  if (in_flight == 0) return invalid("a virtual worker has no microbatch in flight");
  std::set<std::uint32_t> seen;
  for (const std::uint32_t member : members)
    if (member >= cluster.devices.size() || !seen.insert(member).second)
      return invalid(fmt::format("device {} is named twice or not one of the {} there are", member,
                                 cluster.devices.size()));
  const StageCosts stages(cluster, costs, members, in_flight);
  Split split = split_in_order(stages, most_stages);
  if (OrderSearch::in_limits(stages)) split = OrderSearch(stages, most_stages, split.slowest).run();
  if (split.slowest == infinity)
    return Error{ErrorCode::does_not_fit,
                 fmt::format("the model does not fit the {} of a virtual worker with {} in flight",
                             counted(members.size(), "device"), counted(in_flight, "microbatch"))};
  return worker_of(stages, split, members, in_flight);
}

}  // namespace troupe
