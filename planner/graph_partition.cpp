#include "planner/graph_partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "planner/ideals.h"
#include "planner/printable.h"

namespace troupe {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

Error invalid(std::string text) {
  return Error{ErrorCode::invalid_input, std::move(text)};
}

std::string named(const PartitionGraph& graph, std::size_t node) {
  const auto& name = graph.nodes[node].name;
  return name.empty() ? fmt::format("node {}", node)
                      : fmt::format("node {} ({})", node, printable(name));
}

/// Kahn's algorithm; nothing if there is a cycle. The order goes deep first, so that branches stay
/// together.
std::optional<std::vector<std::uint32_t>> topological_order(
    const std::vector<std::vector<std::uint32_t>>& successors) {
  std::vector<std::uint32_t> waiting(successors.size(), 0);
  for (const auto& list : successors)
    for (const auto node : list) ++waiting[node];
  std::vector<std::uint32_t> ready, order;
  for (std::uint32_t node = 0; node < successors.size(); ++node)
    if (waiting[node] == 0) ready.push_back(node);
  std::reverse(ready.begin(), ready.end());
  while (!ready.empty()) {
    const auto node = ready.back();
    ready.pop_back();
    order.push_back(node);
    for (const auto next : successors[node])
      if (--waiting[next] == 0) ready.push_back(next);
  }
  if (order.size() != successors.size()) return std::nullopt;
  return order;
}

Status check(const PartitionGraph& graph) {
  if (graph.nodes.empty()) return invalid("the graph has no nodes");
  const auto bad = [](double value) { return !(value >= 0) || !std::isfinite(value); };
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto& node = graph.nodes[i];
    if (bad(node.time) || bad(node.host_time) || bad(node.transfer_time) || bad(node.bytes)) {
      return invalid(
          fmt::format("{}: time {}, host time {}, transfer time {} and bytes {} must be finite and "
                      "not negative",
                      named(graph, i), node.time, node.host_time, node.transfer_time, node.bytes));
    }
  }
  std::vector<std::vector<std::uint32_t>> successors(graph.nodes.size());
  for (const auto& edge : graph.edges) {
    for (const auto end : {edge.source, edge.destination}) {
      if (end >= graph.nodes.size()) {
        return invalid(fmt::format("the edge {} -> {} names node {}, but the graph has {} nodes",
                                   edge.source, edge.destination, end, graph.nodes.size()));
      }
    }
    if (edge.source == edge.destination)
      return invalid(named(graph, edge.source) + " has an edge to itself");
    if (graph.nodes[edge.source].backward && !graph.nodes[edge.destination].backward) {
      return invalid(fmt::format("an edge leads from the backward {} to the forward {}",
                                 named(graph, edge.source), named(graph, edge.destination)));
    }
    successors[edge.source].push_back(edge.destination);
  }
  if (topological_order(successors)) return {};
  // Walking against the edges inside what no order reaches ends up on a cycle.
  std::vector<std::uint32_t> waiting(graph.nodes.size(), 0);
  std::vector<std::uint32_t> done;
  for (const auto& edge : graph.edges) ++waiting[edge.destination];
  for (std::uint32_t i = 0; i < waiting.size(); ++i)
    if (waiting[i] == 0) done.push_back(i);
  for (std::size_t i = 0; i < done.size(); ++i)
    for (const auto next : successors[done[i]])
      if (--waiting[next] == 0) done.push_back(next);
  std::uint32_t at = 0;
  while (waiting[at] == 0) ++at;
  for (std::size_t step = 0; step < graph.nodes.size(); ++step) {
    for (const auto& edge : graph.edges) {
      if (edge.destination == at && waiting[edge.source] != 0) {
        at = edge.source;
        break;
      }
    }
  }
  return invalid(named(graph, at) + " is on a cycle of edges");
}

/// Which of `count` things are reachable from each other: by thing, the smallest of its group.
/// Tarjan's algorithm without recursion.
std::vector<std::uint32_t> strong_components(
    const std::vector<std::vector<std::uint32_t>>& successors) {
  constexpr std::uint32_t unseen = std::numeric_limits<std::uint32_t>::max();
  const auto count = static_cast<std::uint32_t>(successors.size());
  std::vector<std::uint32_t> entered(count, unseen), low(count, 0), group(count, unseen), open;
  std::vector<std::pair<std::uint32_t, std::size_t>> path;
  std::uint32_t clock = 0;
  for (std::uint32_t root = 0; root < count; ++root) {
    if (entered[root] != unseen) continue;
    path.emplace_back(root, 0);
    while (!path.empty()) {
      const auto node = path.back().first;
      if (path.back().second == 0) {
        entered[node] = low[node] = clock++;
        open.push_back(node);
      }
      if (path.back().second < successors[node].size()) {
        const auto next = successors[node][path.back().second++];
        if (entered[next] == unseen) {
          path.emplace_back(next, 0);
        } else if (group[next] == unseen) {
          low[node] = std::min(low[node], entered[next]);
        }
        continue;
      }
      path.pop_back();
      if (!path.empty()) low[path.back().first] = std::min(low[path.back().first], low[node]);
      if (low[node] != entered[node]) continue;
      const auto begin = std::find(open.begin(), open.end(), node);
      const auto smallest = *std::min_element(begin, open.end());
      for (auto member = begin; member != open.end(); ++member) group[*member] = smallest;
      open.erase(begin, open.end());
    }
  }
  return group;
}

/// The output of one node, or of several with the same readers: `pins` are the components that make
/// or read it. A part pays for it if it holds some of them, but not all.
struct Net {
  std::vector<std::uint32_t> pins;
  double cost = 0;
};

/// What cannot be separated, as one node each.
struct Components {
  std::vector<std::vector<std::uint32_t>> nodes;  ///< of the graph
  std::vector<double> time, host_time, bytes;
  std::vector<bool> host_only;
  std::vector<std::vector<std::uint32_t>> predecessors, successors;
  std::vector<Net> nets;
  std::vector<std::vector<std::uint32_t>> nets_of;
  double total_time = 0, total_bytes = 0;
  double host_rate = 0;  ///< device time that a host does at most in one of host time
  std::size_t size() const { return nodes.size(); }
};

/// `ordered`: components also hold the cycles between classes, and have edges.
Components contract(const PartitionGraph& graph, bool ordered) {
  // Classes, numbered by their first nodes.
  std::vector<std::uint32_t> class_of(graph.nodes.size());
  std::map<std::uint32_t, std::uint32_t> class_of_colocation;
  std::uint32_t classes = 0;
  std::vector<bool> has_forward;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto& node = graph.nodes[i];
    std::uint32_t found = classes;
    if (node.colocation)
      found = class_of_colocation.try_emplace(*node.colocation, classes).first->second;
    if (found == classes) {
      ++classes;
      has_forward.push_back(false);
    }
    class_of[i] = found;
    if (!node.backward) has_forward[found] = true;
  }
  std::set<std::pair<std::uint32_t, std::uint32_t>> class_edges;
  for (const auto& edge : graph.edges) {
    const auto from = class_of[edge.source], to = class_of[edge.destination];
    if (from == to) continue;
    if (!graph.nodes[edge.destination].backward) {
      class_edges.emplace(from, to);
    } else if (graph.nodes[edge.source].backward && !(has_forward[from] && has_forward[to])) {
      class_edges.emplace(to, from);
    }
  }
  std::vector<std::uint32_t> group(classes);
  std::iota(group.begin(), group.end(), 0U);
  if (ordered) {
    std::vector<std::vector<std::uint32_t>> successors(classes);
    for (const auto& [from, to] : class_edges) successors[from].push_back(to);
    group = strong_components(successors);
  }
  Components result;
  std::vector<std::uint32_t> number(classes, 0);
  for (std::uint32_t c = 0; c < classes; ++c) {
    if (group[c] == c) {
      number[c] = static_cast<std::uint32_t>(result.nodes.size());
      result.nodes.emplace_back();
    }
  }
  const auto component = [&](std::uint32_t c) { return number[group[c]]; };
  const auto count = result.nodes.size();
  result.time.assign(count, 0);
  result.host_time.assign(count, 0);
  result.bytes.assign(count, 0);
  result.host_only.assign(count, false);
  result.predecessors.resize(count);
  result.successors.resize(count);
  result.nets_of.resize(count);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto at = component(class_of[i]);
    result.nodes[at].push_back(static_cast<std::uint32_t>(i));
    result.time[at] += graph.nodes[i].time;
    result.host_time[at] += graph.nodes[i].host_time;
    result.bytes[at] += graph.nodes[i].bytes;
    if (graph.nodes[i].host_only) result.host_only[at] = true;
    result.total_time += graph.nodes[i].time;
    result.total_bytes += graph.nodes[i].bytes;
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (result.time[i] > 0)
      result.host_rate = std::max(result.host_rate, result.time[i] / result.host_time[i]);
  }
  std::set<std::pair<std::uint32_t, std::uint32_t>> edges;
  for (const auto& [from, to] : class_edges)
    if (component(from) != component(to)) edges.emplace(component(from), component(to));
  for (const auto& [from, to] : edges) {
    result.successors[from].push_back(to);
    result.predecessors[to].push_back(from);
  }
  std::vector<std::set<std::uint32_t>> pins(graph.nodes.size());
  for (const auto& edge : graph.edges) {
    pins[edge.source].insert(component(class_of[edge.source]));
    pins[edge.source].insert(component(class_of[edge.destination]));
  }
  std::map<std::set<std::uint32_t>, double> cost_of_pins;
  for (std::size_t i = 0; i < pins.size(); ++i) {
    if (pins[i].size() > 1 && graph.nodes[i].transfer_time > 0)
      cost_of_pins[pins[i]] += graph.nodes[i].transfer_time;
  }
  for (const auto& [held, cost] : cost_of_pins) {
    for (const auto pin : held)
      result.nets_of[pin].push_back(static_cast<std::uint32_t>(result.nets.size()));
    result.nets.push_back({{held.begin(), held.end()}, cost});
  }
  return result;
}

/// Components of one part.
struct Group {
  std::vector<std::uint32_t> components;
  bool host = false;
};

/// Fills the best load of every ideal by number of devices and hosts used, for all ideals that a
/// split better than `bound` could go through.
class ContiguousSearch {
 public:
  ContiguousSearch(const Components& parts,
                   const IdealLattice& lattice,
                   const GraphPartitionOptions& options,
                   double bound)
      : parts_(parts),
        lattice_(lattice),
        devices_(std::min<std::size_t>(options.devices, parts.size())),
        hosts_(std::min<std::size_t>(options.hosts, parts.size())),
        memory_(options.memory_bytes),
        bound_(bound),
        inside_(parts.nets.size(), 0) {}

  /// The parts in order, or nothing if no split is better than the bound.
  std::optional<std::vector<Group>> run() {
    const std::size_t row = cell(hosts_, devices_) + 1;
    best_.assign(lattice_.size() * row, infinity);
    from_.assign(best_.size(), {});
    time_.assign(lattice_.size(), 0);
    for (std::size_t i = 1; i < lattice_.size(); ++i) {
      const auto& step = lattice_.below(static_cast<IdealLattice::Ideal>(i));
      time_[i] = time_[step.ideal] + parts_.time[step.node];
    }
    best_[0] = 0;
    for (std::size_t i = 0; i + 1 < lattice_.size(); ++i) {
      base_ = static_cast<IdealLattice::Ideal>(i);
      const double* loads = &best_[i * row];
      if (std::all_of(loads, loads + row, [&](double load) { return load >= bound_; })) continue;
      part_time_ = host_time_ = transfer_ = bytes_ = 0;
      host_only_ = 0;
      lattice_.each_superset(base_, *this);
    }
    const double* loads = &best_[lattice_.full() * row];
    auto at_cell = static_cast<std::size_t>(std::min_element(loads, loads + row) - loads);
    if (loads[at_cell] == infinity) return std::nullopt;
    std::vector<Group> result;
    for (IdealLattice::Ideal at = lattice_.full(); at != 0;) {
      const Link link = from_[at * row + at_cell];
      const auto all = lattice_.nodes(at), rest = lattice_.nodes(link.ideal);
      Group group;
      std::set_difference(all.begin(), all.end(), rest.begin(), rest.end(),
                          std::back_inserter(group.components));
      group.host = link.host;
      result.push_back(std::move(group));
      at_cell -= link.host ? cell(1, 0) : cell(0, 1);
      at = link.ideal;
    }
    std::reverse(result.begin(), result.end());
    return result;
  }

  bool add(std::uint32_t node) {
    part_time_ += parts_.time[node];
    host_time_ += parts_.host_time[node];
    bytes_ += parts_.bytes[node];
    if (parts_.host_only[node]) ++host_only_;
    for (const auto net : parts_.nets_of[node]) {
      const auto pins = parts_.nets[net].pins.size();
      const auto before = inside_[net]++;
      if (before == 0) transfer_ += parts_.nets[net].cost;
      if (before + 1 == pins) transfer_ -= parts_.nets[net].cost;
    }
    return on_device() || on_host();
  }

  void remove(std::uint32_t node) {
    part_time_ -= parts_.time[node];
    host_time_ -= parts_.host_time[node];
    bytes_ -= parts_.bytes[node];
    if (parts_.host_only[node]) --host_only_;
    for (const auto net : parts_.nets_of[node]) {
      const auto pins = parts_.nets[net].pins.size();
      const auto before = inside_[net]--;
      if (before == pins) transfer_ += parts_.nets[net].cost;
      if (before == 1) transfer_ -= parts_.nets[net].cost;
    }
  }

  void visit(IdealLattice::Ideal ideal) {
    if (on_device()) place(ideal, part_time_ + transfer_, false);
    if (on_host()) place(ideal, host_time_, true);
  }

 private:
  struct Link {
    IdealLattice::Ideal ideal = 0;
    bool host = false;
  };

  std::size_t cell(std::size_t hosts, std::size_t devices) const {
    return hosts * (devices_ + 1) + devices;
  }

  // What these compare only grows with the part. The slack is for what rounding leaves of sums and
  // differences.
  bool on_device() const {
    return devices_ > 0 && host_only_ == 0 && part_time_ <= bound_ * (1 + 1e-12) &&
           bytes_ <= memory_ * (1 + 1e-15);
  }
  bool on_host() const { return hosts_ > 0 && host_time_ <= bound_ * (1 + 1e-12); }

  /// Device time that can be done below the bound; not a number or infinite if any.
  double room(std::size_t hosts, std::size_t devices) const {
    double result = 0;
    if (devices > 0) result += bound_ * static_cast<double>(devices);
    if (hosts > 0) result += bound_ * static_cast<double>(hosts) * parts_.host_rate;
    return result;
  }

  void place(IdealLattice::Ideal ideal, double load, bool host) {
    if (load >= bound_) return;
    // Less what rounding leaves of it.
    const double left = parts_.total_time * (1 - 1e-12) - time_[ideal];
    const std::size_t row = cell(hosts_, devices_) + 1;
    for (std::size_t hosts = 0; hosts + (host ? 1 : 0) <= hosts_; ++hosts) {
      for (std::size_t devices = 0; devices + (host ? 0 : 1) <= devices_; ++devices) {
        const double worst = std::max(best_[base_ * row + cell(hosts, devices)], load);
        const std::size_t hosts_used = hosts + (host ? 1 : 0);
        const std::size_t devices_used = devices + (host ? 0 : 1);
        const std::size_t target = ideal * row + cell(hosts_used, devices_used);
        if (worst >= best_[target] || worst >= bound_) continue;
        if (left > room(hosts_ - hosts_used, devices_ - devices_used)) continue;
        best_[target] = worst;
        from_[target] = {base_, host};
        if (ideal == lattice_.full()) bound_ = worst;
      }
    }
  }

  const Components& parts_;
  const IdealLattice& lattice_;
  std::size_t devices_, hosts_;
  double memory_;
  double bound_;
  std::vector<std::size_t> inside_;  ///< pins of each net in the part
  IdealLattice::Ideal base_ = 0;
  double part_time_ = 0, host_time_ = 0, transfer_ = 0, bytes_ = 0;
  std::size_t host_only_ = 0;
  std::vector<double> best_;  ///< by ideal and cell
  std::vector<Link> from_;
  std::vector<double> time_;
};

/// What each group of components is and has to do.
GraphPartition describe(const PartitionGraph& graph,
                        const Components& components,
                        const std::vector<Group>& groups) {
  // Part g is device g, or host g of those above.
  const auto first_host = static_cast<std::uint32_t>(groups.size());
  std::vector<std::uint32_t> device(graph.nodes.size(), 0);
  for (std::uint32_t g = 0; g < groups.size(); ++g)
    for (const auto component : groups[g].components)
      for (const auto node : components.nodes[component])
        device[node] = groups[g].host ? first_host + g : g;
  auto priced = price_partition(graph, device, first_host);
  EXPECTS(priced.ok());
  std::vector<GraphPart> in_order(groups.size());
  for (auto& part : priced->parts) {
    const auto at = device[part.nodes.front()];
    in_order[at < first_host ? at : at - first_host] = std::move(part);
  }
  priced->parts = std::move(in_order);
  priced->components = components.size();
  return std::move(*priced);
}

std::string bytes_text(double bytes) {
  return fmt::format("{:.0f} bytes", bytes);
}

Status check_options(const PartitionGraph& graph, const GraphPartitionOptions& options) {
  TROUPE_TRY(check(graph));
  if (options.devices == 0 && options.hosts == 0)
    return invalid("there is no device to place the graph on");
  if (!(options.memory_bytes > 0))
    return invalid(fmt::format("a device has {} bytes of memory", options.memory_bytes));
  return {};
}

/// Refuses what no split of any kind can place.
Status check_memory(const PartitionGraph& graph,
                    const Components& components,
                    const GraphPartitionOptions& options) {
  if (options.hosts > 0) return {};
  for (std::size_t i = 0; i < components.size(); ++i) {
    if (components.host_only[i]) {
      return Error{ErrorCode::does_not_fit,
                   fmt::format("{} or what stays with it runs on a host only, and there is none",
                               named(graph, components.nodes[i].front()))};
    }
    if (components.bytes[i] <= options.memory_bytes) continue;
    const auto& nodes = components.nodes[i];
    return Error{ErrorCode::does_not_fit,
                 fmt::format("{}{} needs {}; a device has {}", named(graph, nodes.front()),
                             nodes.size() == 1 ? std::string()
                                               : fmt::format(" with the {} nodes that stay with it",
                                                             nodes.size() - 1),
                             bytes_text(components.bytes[i]), bytes_text(options.memory_bytes))};
  }
  if (components.total_bytes > options.memory_bytes * options.devices) {
    return Error{
        ErrorCode::does_not_fit,
        fmt::format("the graph needs {}; {} devices have {}", bytes_text(components.total_bytes),
                    options.devices, bytes_text(options.memory_bytes * options.devices))};
  }
  return {};
}

/// Assigns components one by one; a device's load can only grow.
class FreeSearch {
 public:
  FreeSearch(const Components& parts, const GraphPartitionOptions& options, double bound)
      : parts_(parts),
        devices_(std::min<std::size_t>(options.devices, parts.size())),
        places_(devices_ + std::min<std::size_t>(options.hosts, parts.size())),
        memory_(options.memory_bytes),
        steps_left_(options.step_limit),
        bound_(bound),
        load_(places_, 0),
        bytes_(places_, 0),
        place_of_(parts.size(), 0),
        pins_(parts.nets.size() * places_, 0),
        placed_(parts.nets.size(), 0) {
    // The heaviest first, so that bounds bite early.
    order_.resize(parts.size());
    std::iota(order_.begin(), order_.end(), 0U);
    std::vector<double> weight(parts.time);
    for (const auto& net : parts.nets)
      for (const auto pin : net.pins) weight[pin] += net.cost;
    std::stable_sort(order_.begin(), order_.end(),
                     [&](auto a, auto b) { return weight[a] > weight[b]; });
  }

  bool finished() const { return !stopped_; }

  std::optional<std::vector<Group>> run() {
    assign(0, 0, devices_, parts_.total_time);
    return best_;
  }

 private:
  /// Devices below `device_end` and hosts below `host_end` hold something; `left` is the device
  /// time of what is not placed.
  void assign(std::size_t position, std::size_t device_end, std::size_t host_end, double left) {
    if (position == order_.size()) {
      bound_ = *std::max_element(load_.begin(), load_.end());
      best_.emplace(places_);
      for (std::uint32_t i = 0; i < parts_.size(); ++i)
        (*best_)[place_of_[i]].components.push_back(i);
      for (std::size_t place = devices_; place < places_; ++place) (*best_)[place].host = true;
      std::erase_if(*best_, [](const Group& group) { return group.components.empty(); });
      return;
    }
    double room = 0;
    for (std::size_t place = 0; place < places_; ++place)
      room += (bound_ - load_[place]) * (place < devices_ ? 1 : parts_.host_rate);
    if (left - parts_.total_time * 1e-12 > room) return;
    const auto component = order_[position];
    // Empty devices are alike, and so are empty hosts: one of them is enough.
    for (std::size_t place = 0; place < places_; ++place) {
      if (place < devices_ ? place > device_end : place > host_end) continue;
      if (steps_left_ == 0) {
        stopped_ = true;
        return;
      }
      --steps_left_;
      const bool host = place >= devices_;
      if (!host &&
          (parts_.host_only[component] || bytes_[place] + parts_.bytes[component] > memory_)) {
        continue;
      }
      const auto saved = load_;
      put(component, place);
      if (*std::max_element(load_.begin(), load_.end()) < bound_) {
        assign(position + 1, host ? device_end : std::max(device_end, place + 1),
               host ? std::max(host_end, place + 1) : host_end, left - parts_.time[component]);
      }
      take(component, place);
      load_ = saved;
    }
  }

  /// A device pays for a net as soon as it holds a pin and another pin is elsewhere.
  void put(std::uint32_t component, std::size_t place) {
    place_of_[component] = place;
    load_[place] += place < devices_ ? parts_.time[component] : parts_.host_time[component];
    bytes_[place] += parts_.bytes[component];
    for (const auto net : parts_.nets_of[component]) {
      auto* held = &pins_[net * places_];
      if (held[place] == 0 && placed_[net] > 0) {
        if (place < devices_) load_[place] += parts_.nets[net].cost;
        for (std::size_t other = 0; other < devices_; ++other)
          if (held[other] == placed_[net]) load_[other] += parts_.nets[net].cost;
      }
      ++held[place];
      ++placed_[net];
    }
  }
  void take(std::uint32_t component, std::size_t place) {
    bytes_[place] -= parts_.bytes[component];
    for (const auto net : parts_.nets_of[component]) {
      --pins_[net * places_ + place];
      --placed_[net];
    }
  }

  const Components& parts_;
  std::size_t devices_, places_;  ///< hosts come after devices
  double memory_;
  std::uint64_t steps_left_;
  bool stopped_ = false;
  double bound_;
  std::vector<double> load_, bytes_;
  std::vector<std::size_t> place_of_;
  std::vector<std::uint32_t> pins_;    ///< by net and place
  std::vector<std::uint32_t> placed_;  ///< pins of each net
  std::vector<std::uint32_t> order_;
  std::optional<std::vector<Group>> best_;
};

}  // namespace

Result<GraphPartition> price_partition(const PartitionGraph& graph,
                                       const std::vector<std::uint32_t>& device_of_node,
                                       std::uint32_t first_host) {
  TROUPE_TRY(check(graph));
  if (device_of_node.size() != graph.nodes.size()) {
    return invalid(fmt::format("{} devices are given for {} nodes", device_of_node.size(),
                               graph.nodes.size()));
  }
  std::map<std::uint32_t, GraphPart> parts;
  for (std::uint32_t i = 0; i < graph.nodes.size(); ++i) {
    auto& part = parts[device_of_node[i]];
    part.nodes.push_back(i);
    part.host = device_of_node[i] >= first_host;
    part.time += part.host ? graph.nodes[i].host_time : graph.nodes[i].time;
    part.bytes += graph.nodes[i].bytes;
  }
  // Who pays for the output of which node.
  std::set<std::pair<std::uint32_t, std::uint32_t>> paid;
  for (const auto& edge : graph.edges) {
    if (device_of_node[edge.source] == device_of_node[edge.destination]) continue;
    paid.emplace(device_of_node[edge.source], edge.source);
    paid.emplace(device_of_node[edge.destination], edge.source);
  }
  for (const auto& [device, source] : paid)
    if (device < first_host) parts[device].transfer += graph.nodes[source].transfer_time;
  GraphPartition result;
  for (auto& [device, part] : parts) {
    result.max_load = std::max(result.max_load, part.load());
    result.parts.push_back(std::move(part));
  }
  return result;
}

Result<GraphPartition> partition_contiguous(const PartitionGraph& graph,
                                            const GraphPartitionOptions& options) {
  TROUPE_TRY(check_options(graph, options));
  const Components components = contract(graph, true);
  TROUPE_TRY(check_memory(graph, components, options));
  const auto order = topological_order(components.successors);
  EXPECTS(order.has_value());
  std::vector<std::vector<std::uint32_t>> chain(components.size());
  for (std::size_t i = 1; i < order->size(); ++i) chain[(*order)[i]] = {(*order)[i - 1]};
  const auto line = IdealLattice::make(chain, components.size() + 1);
  EXPECTS(line.ok());
  auto found = ContiguousSearch(components, *line, options, infinity).run();
  double bound = infinity;
  GraphPartition result;
  if (found) {
    result = describe(graph, components, *found);
    bound = result.max_load;
  }
  // The search keeps 16 bytes for each ideal and number of devices and hosts used.
  constexpr std::size_t most_cells = 100'000'000;
  const auto cells = (std::min<std::size_t>(options.devices, components.size()) + 1) *
                     (std::min<std::size_t>(options.hosts, components.size()) + 1);
  const auto lattice = IdealLattice::make(components.predecessors,
                                          std::min(options.ideal_limit, most_cells / cells + 1));
  if (lattice) {
    const auto better = ContiguousSearch(components, *lattice, options, bound).run();
    if (better) result = describe(graph, components, *better);
    if (!found) found = better;
    result.proven = true;
    result.ideals = lattice->size();
  }
  if (found) return result;
  return Error{ErrorCode::does_not_fit,
               fmt::format("no contiguous split of {} nodes over {} devices of {} {}",
                           graph.nodes.size(), options.devices, bytes_text(options.memory_bytes),
                           lattice.ok() ? "exists" : "was found along a topological order")};
}

Result<GraphPartition> partition_anyhow(const PartitionGraph& graph,
                                        const GraphPartitionOptions& options) {
  TROUPE_TRY(check_options(graph, options));
  const Components components = contract(graph, false);
  TROUPE_TRY(check_memory(graph, components, options));
  auto contiguous = partition_contiguous(graph, options);
  if (!contiguous && contiguous.error().code != ErrorCode::does_not_fit) return contiguous;
  FreeSearch search(components, options, contiguous ? contiguous->max_load : infinity);
  const auto better = search.run();
  if (!better && !contiguous) {
    return Error{ErrorCode::does_not_fit,
                 fmt::format("no split of {} nodes over {} devices of {} {}", graph.nodes.size(),
                             options.devices, bytes_text(options.memory_bytes),
                             search.finished() ? "exists" : "was found")};
  }
  GraphPartition result = better ? describe(graph, components, *better) : std::move(*contiguous);
  result.components = components.size();
  result.proven = search.finished();
  return result;
}

}  // namespace troupe
