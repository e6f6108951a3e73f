#include "planner/expert_placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

namespace troupe {
namespace {

constexpr Seconds never = std::numeric_limits<Seconds>::infinity();

Status check_room(std::size_t experts, const std::vector<ExpertHost>& hosts) {
  std::uint64_t room = 0;
  for (const ExpertHost& host : hosts) room += host.most;
  if (room >= experts) return {};
  return Error{ErrorCode::does_not_fit,
               fmt::format("{} experts do not fit: the {} devices hold {} together", experts,
                           hosts.size(), room)};
}

/// A placement that is being made.
class Placing {
 public:
  Placing(const std::vector<double>& loads, const std::vector<ExpertHost>& hosts)
      : loads_(loads),
        hosts_(hosts),
        host_(loads.size(), 0),
        load_(hosts.size(), 0),
        count_(hosts.size(), 0) {}

  bool has_room(std::size_t host) const { return count_[host] < hosts_[host].most; }
  Seconds busy(std::size_t host, double more = 0) const {
    return (load_[host] + more) * hosts_[host].seconds_per_load;
  }
  Seconds slowest() const {
    Seconds most = 0;
    for (std::size_t h = 0; h < hosts_.size(); ++h) most = std::max(most, busy(h));
    return most;
  }
  void put(std::size_t expert, std::size_t host) {
    host_[expert] = static_cast<std::uint32_t>(host);
    load_[host] += loads_[expert];
    ++count_[host];
  }
  void take(std::size_t expert) {
    load_[host_[expert]] -= loads_[expert];
    --count_[host_[expert]];
  }
  /// The host that ends first with `load` more; among equals the first.
  std::size_t soonest(double load) const {
    std::size_t best = hosts_.size();
    for (std::size_t h = 0; h < hosts_.size(); ++h)
      if (has_room(h) && (best == hosts_.size() || busy(h, load) < busy(best, load))) best = h;
    return best;
  }
  std::uint32_t host_of(std::size_t expert) const { return host_[expert]; }
  const std::vector<std::uint32_t>& counts() const { return count_; }
  const std::vector<std::uint32_t>& placement() const { return host_; }

 private:
  const std::vector<double>& loads_;
  const std::vector<ExpertHost>& hosts_;
  std::vector<std::uint32_t> host_;   ///< by expert
  std::vector<double> load_;          ///< by host
  std::vector<std::uint32_t> count_;  ///< by host
};

std::vector<std::size_t> heaviest_first(const std::vector<double>& loads) {
  std::vector<std::size_t> order(loads.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&loads](std::size_t a, std::size_t b) { return loads[a] > loads[b]; });
  return order;
}

/// The mean over all hosts' speeds, and the heaviest expert on the fastest host.
Seconds bound_of(const std::vector<double>& loads, const std::vector<ExpertHost>& hosts) {
  double speed = 0;
  Seconds fastest = never;
  for (const ExpertHost& host : hosts) {
    if (host.most == 0) continue;
    if (host.seconds_per_load == 0) return 0;
    speed += 1 / host.seconds_per_load;
    fastest = std::min(fastest, host.seconds_per_load);
  }
  if (loads.empty()) return 0;
  return std::max(std::accumulate(loads.begin(), loads.end(), 0.0) / speed,
                  *std::max_element(loads.begin(), loads.end()) * fastest);
}

/// Moves one expert off the busiest host, or swaps it with a lighter one, where both hosts then end
/// sooner than the busiest did.
bool improve(Placing& placing, const std::vector<double>& loads, std::size_t hosts) {
  std::size_t busiest = 0;
  for (std::size_t h = 1; h < hosts; ++h)
    if (placing.busy(h) > placing.busy(busiest)) busiest = h;
  const Seconds before = placing.busy(busiest);
  for (std::size_t expert = 0; expert < loads.size(); ++expert) {
    if (placing.host_of(expert) != busiest || loads[expert] == 0) continue;
    for (std::size_t host = 0; host < hosts; ++host) {
      if (host == busiest || !placing.has_room(host)) continue;
      if (placing.busy(host, loads[expert]) >= before) continue;
      placing.take(expert);
      placing.put(expert, host);
      return true;
    }
    for (std::size_t other = 0; other < loads.size(); ++other) {
      const std::size_t host = placing.host_of(other);
      if (host == busiest || loads[other] >= loads[expert]) continue;
      if (placing.busy(host, loads[expert] - loads[other]) >= before) continue;
      placing.take(expert);
      placing.take(other);
      placing.put(expert, host);
      placing.put(other, busiest);
      return true;
    }
  }
  return false;
}

/// Depth first over experts, heaviest first; partial placements that already last as long as the
/// best known one are cut off, hosts in the same state are tried once.
class Exact {
 public:
  Exact(const std::vector<double>& loads,
        const std::vector<ExpertHost>& hosts,
        std::uint64_t nodes,
        Seconds bound,
        Seconds best)
      : loads_(loads),
        hosts_(hosts),
        order_(heaviest_first(loads)),
        left_(nodes),
        bound_(bound),
        best_(best),
        placing_(loads, hosts) {}

  /// Whether the search came to its end.
  bool run() {
    descend(0);
    return left_ > 0;
  }
  const std::vector<std::uint32_t>& found() const { return found_; }

 private:
  void descend(std::size_t depth) {
    if (left_ == 0 || best_ <= bound_) return;
    if (depth == order_.size()) {
      best_ = placing_.slowest();
      found_ = placing_.placement();
      return;
    }
    const double load = loads_[order_[depth]];
    for (std::size_t host = 0; host < hosts_.size(); ++host) {
      if (!placing_.has_room(host) || placing_.busy(host, load) >= best_) continue;
      if (same_as_before(host)) continue;
      if (left_ == 0) return;
      --left_;
      placing_.put(order_[depth], host);
      descend(depth + 1);
      placing_.take(order_[depth]);
    }
  }
  bool same_as_before(std::size_t host) const {
    for (std::size_t h = 0; h < host; ++h)
      if (hosts_[h].seconds_per_load == hosts_[host].seconds_per_load &&
          hosts_[h].most - placing_.counts()[h] == hosts_[host].most - placing_.counts()[host] &&
          placing_.busy(h) == placing_.busy(host))
        return true;
    return false;
  }

  const std::vector<double>& loads_;
  const std::vector<ExpertHost>& hosts_;
  std::vector<std::size_t> order_;
  std::uint64_t left_;
  Seconds bound_, best_;
  Placing placing_;
  std::vector<std::uint32_t> found_;
};

}  // namespace

Result<std::vector<std::uint32_t>> expert_counts(std::uint32_t experts,
                                                 const std::vector<ExpertHost>& hosts) {
  TROUPE_TRY(check_room(experts, hosts));
  // The host that ends first with one more is on top; among equals the first.
  using Next = std::pair<Seconds, std::size_t>;
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  for (std::size_t h = 0; h < hosts.size(); ++h)
    if (hosts[h].most > 0) next.emplace(hosts[h].seconds_per_load, h);
  std::vector<std::uint32_t> counts(hosts.size(), 0);
  for (std::uint32_t expert = 0; expert < experts; ++expert) {
    const std::size_t host = next.top().second;
    next.pop();
    if (++counts[host] < hosts[host].most)
      next.emplace((counts[host] + 1.0) * hosts[host].seconds_per_load, host);
  }
  return counts;
}

Result<ExpertPlacement> place_experts(const std::vector<double>& loads,
                                      const std::vector<ExpertHost>& hosts,
                                      std::uint64_t nodes) {
  for (const double load : loads) EXPECTS(std::isfinite(load) && load >= 0);
  for (const ExpertHost& host : hosts)
    EXPECTS(std::isfinite(host.seconds_per_load) && host.seconds_per_load >= 0);
  TROUPE_TRY(check_room(loads.size(), hosts));
  Placing placing(loads, hosts);
  for (const std::size_t expert : heaviest_first(loads))
    placing.put(expert, placing.soonest(loads[expert]));
  while (improve(placing, loads, hosts.size())) {
  }
  ExpertPlacement out;
  out.bound = bound_of(loads, hosts);
  out.host = placing.placement();
  Exact exact(loads, hosts, nodes, out.bound, placing.slowest());
  out.proven = exact.run();
  if (!exact.found().empty()) out.host = exact.found();
  out.busy.assign(hosts.size(), 0);
  for (std::size_t expert = 0; expert < loads.size(); ++expert)
    out.busy[out.host[expert]] += loads[expert] * hosts[out.host[expert]].seconds_per_load;
  if (!out.busy.empty()) out.seconds = *std::max_element(out.busy.begin(), out.busy.end());
  return out;
}

}  // namespace troupe
