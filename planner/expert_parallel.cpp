#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "planner/expert_costs.h"

namespace troupe {
namespace {

using Counts = std::vector<std::uint32_t>;
using Devices = std::vector<bool>;

/// Sequences of a round and experts of each layer, by device.
struct Split {
  Counts sequences, experts;
};

/// Which devices may have sequences, and which experts.
struct Allowed {
  Devices sequences, experts;
  friend auto operator<=>(const Allowed&, const Allowed&) = default;
};

class ExpertParallel {
 public:
  ExpertParallel(const PlanRequest& request, const ExpertCosts& costs)
      : request_(request), costs_(costs) {}

  std::optional<ExpertPlan> best() {
    constexpr std::uint32_t most_rounds = 48, most_rounds_of_many = 12, many = 16;
    const auto sizes =
        round_sizes(costs_.batch, costs_.devices() > many ? most_rounds_of_many : most_rounds);
    for (const std::uint32_t sequences : sizes) {
      const ExpertRound round{sequences, 1, expert_seconds(request_, costs_, sequences)};
      for (const Allowed& allowed : choices()) try_round(round, allowed);
    }
    return std::move(best_);
  }

 private:
  /// All devices; only the kinds that are quickest at attention; one node alone.
  std::vector<Allowed> choices() const {
    constexpr std::size_t most_nodes = 8;
    const std::size_t count = costs_.devices();
    std::set<Allowed> out;
    Counts kinds(costs_.kinds.size());
    std::iota(kinds.begin(), kinds.end(), 0U);
    std::sort(kinds.begin(), kinds.end(), [&](std::uint32_t a, std::uint32_t b) {
      return costs_.attention_seconds(costs_.example[a]) <
             costs_.attention_seconds(costs_.example[b]);
    });
    Devices some(count);
    for (const std::uint32_t kind : kinds) {
      for (std::size_t d = 0; d < count; ++d) some[d] = some[d] || costs_.kind[d] == kind;
      out.insert({some, Devices(count, true)});
      out.insert({some, some});
    }
    const std::size_t nodes = request_.cluster.nodes.size();
    for (std::size_t node = 0; node < nodes && nodes <= most_nodes; ++node) {
      Devices on(count);
      for (std::size_t d = 0; d < count; ++d)
        on[d] = request_.cluster.devices[d].node.index() == node;
      if (std::count(on.begin(), on.end(), true) > 0) out.insert({on, on});
    }
    return {out.begin(), out.end()};
  }

  void try_round(const ExpertRound& round, const Allowed& allowed) {
    constexpr double few = 4096;
    every_ =
        ways(round.sequences) * ways(costs_.batch % round.sequences) * ways(costs_.experts) <= few;
    const auto split = every_ ? best_of_all(round, allowed) : found(round, allowed);
    if (split && (!best_ || step_seconds(round, *split) < best_->step))
      best_ = filled(round, *split);
  }

  /// Ways to share out equal pieces over the devices.
  double ways(std::uint32_t pieces) const {
    double out = 1;
    for (std::size_t d = 1; d < costs_.devices(); ++d)
      out *= static_cast<double>(pieces + d) / static_cast<double>(d);
    return out;
  }

  std::optional<Split> best_of_all(const ExpertRound& round, const Allowed& allowed) {
    std::optional<Split> best;
    Seconds least = 0;
    for (const Counts& sequences : all_shares(round.sequences, allowed.sequences))
      for (const Counts& experts : all_shares(costs_.experts, allowed.experts)) {
        const Split split{sequences, experts};
        bool fit = true;
        for (std::size_t d = 0; d < costs_.devices(); ++d) fit = fit && fits(round, split, d);
        if (!fit) continue;
        const Seconds step = step_seconds(round, split);
        if (best && step >= least) continue;
        least = step;
        best = split;
      }
    return best;
  }

  static std::vector<Counts> all_shares(std::uint32_t pieces, const Devices& may) {
    std::vector<Counts> out{Counts{}};
    for (std::size_t d = 0; d < may.size(); ++d) {
      std::vector<Counts> longer;
      for (const Counts& begun : out) {
        const std::uint32_t left = pieces - std::accumulate(begun.begin(), begun.end(), 0U);
        for (std::uint32_t count = 0; count <= (may[d] ? left : 0); ++count) {
          longer.push_back(begun);
          longer.back().push_back(count);
        }
      }
      out = std::move(longer);
    }
    std::erase_if(out, [pieces](const Counts& all) {
      return std::accumulate(all.begin(), all.end(), 0U) != pieces;
    });
    return out;
  }

  /// Sequences first, then experts into what memory they leave, with room for some experts kept
  /// free where that is too little. Of few devices every way to share out is improved, not one
  /// alone.
  std::optional<Split> found(const ExpertRound& round, const Allowed& allowed) {
    constexpr std::size_t few = 6;
    std::optional<Split> quickest;
    Seconds least = 0;
    for (const double reserved : {0.0, 0.5, 1.0}) {
      for (const Counts& sequences :
           shares_of_pieces(round.sequences, sequence_hosts(round, allowed, reserved)))
        for (Counts& experts :
             shares_of_pieces(costs_.experts, expert_hosts(round, allowed, sequences))) {
          Split split{sequences, std::move(experts)};
          if (costs_.devices() <= few) improve(round, allowed, split);
          const Seconds step = step_seconds(round, split);
          if (quickest && step >= least) continue;
          least = step;
          quickest = std::move(split);
        }
      if (quickest && costs_.devices() > few) break;
    }
    if (quickest) improve(round, allowed, *quickest);
    return quickest;
  }

  std::vector<ExpertHost> sequence_hosts(const ExpertRound& round,
                                         const Allowed& allowed,
                                         double reserved) const {
    std::vector<ExpertHost> hosts;
    const auto devices = static_cast<double>(costs_.devices());
    const double kept_free =
        reserved * expert_bytes(costs_, round, costs_.layers * costs_.experts, costs_.experts) /
        devices;
    for (std::uint32_t d = 0; d < costs_.devices(); ++d)
      hosts.push_back(
          {costs_.attention_seconds(d),
           allowed.sequences[d] ? sequences_in(costs_, round, costs_.memory[d] - kept_free) : 0});
    return hosts;
  }

  std::vector<ExpertHost> expert_hosts(const ExpertRound& round,
                                       const Allowed& allowed,
                                       const Counts& sequences) const {
    std::vector<ExpertHost> hosts;
    for (std::uint32_t d = 0; d < costs_.devices(); ++d) {
      const double room = costs_.memory[d] - dense_bytes(costs_, round, sequences[d]);
      hosts.push_back({round.experts[costs_.kind[d]].sum(),
                       allowed.experts[d] ? experts_in(costs_, round, room) : 0});
    }
    return hosts;
  }

  bool fits(const ExpertRound& round, const Split& split, std::size_t d) const {
    return bytes(round, split, d) <= costs_.memory[d];
  }

  double bytes(const ExpertRound& round, const Split& split, std::size_t d) const {
    return dense_bytes(costs_, round, split.sequences[d]) +
           expert_bytes(costs_, round, costs_.layers * split.experts[d], split.experts[d]);
  }

  /// Single sequences and experts change their device, or one of each change places, while that
  /// makes the step shorter. Sharing out knows compute alone, and forward and backward as a sum.
  void improve(const ExpertRound& round, const Allowed& allowed, Split& split) {
    constexpr std::size_t most_devices = 16;
    if (costs_.devices() > most_devices) return;
    Seconds least = step_seconds(round, split);
    const auto shorter = [&](const Split& other, std::size_t a, std::size_t b) {
      if (!fits(round, other, a) || !fits(round, other, b)) return false;
      const Seconds step = step_seconds(round, other);
      if (step >= least * (1 - 1e-12)) return false;
      least = step;
      split = other;
      return true;
    };
    for (bool again = true; again;) {
      again = false;
      for (std::size_t a = 0; a < costs_.devices(); ++a)
        for (std::size_t b = 0; b < costs_.devices(); ++b) {
          const auto sequence = moved(split, &Split::sequences, allowed.sequences, a, b);
          if (sequence && shorter(*sequence, a, b)) again = true;
          const auto expert = moved(split, &Split::experts, allowed.experts, a, b);
          if (expert && shorter(*expert, a, b)) again = true;
          const auto one = moved(split, &Split::sequences, allowed.sequences, a, b);
          if (!one) continue;
          const auto both = moved(*one, &Split::experts, allowed.experts, b, a);
          if (both && shorter(*both, a, b)) again = true;
        }
    }
  }

  /// With one of device a's on b.
  static std::optional<Split> moved(
      Split split, Counts Split::*what, const Devices& may, std::size_t a, std::size_t b) {
    if (a == b || (split.*what)[a] == 0 || !may[b]) return std::nullopt;
    --(split.*what)[a];
    ++(split.*what)[b];
    return split;
  }

  const std::vector<LinkSpec>& links_among(const Split& split) {
    Devices used(costs_.devices());
    for (std::size_t d = 0; d < used.size(); ++d)
      used[d] = split.sequences[d] > 0 || split.experts[d] > 0;
    auto found = links_.find(used);
    if (found == links_.end()) {
      const bool alone = std::count(used.begin(), used.end(), true) < 2;
      auto links = alone ? std::vector<LinkSpec>{} : links_between(request_.cluster, used, used);
      found = links_.emplace(std::move(used), std::move(links)).first;
    }
    return found->second;
  }

  /// Every device's tokens to all experts: the most bytes that one sends or gets. Nothing is sent
  /// where a token's expert is at home.
  double exchanged(const Counts& sequences, const Counts& experts) const {
    const double all = std::accumulate(sequences.begin(), sequences.end(), 0.0);
    double most = 0;
    for (std::size_t d = 0; d < sequences.size(); ++d) {
      const double part = static_cast<double>(experts[d]) / costs_.experts;
      most = std::max({most, sequences[d] * (1 - part), (all - sequences[d]) * part});
    }
    return most * costs_.exchange;
  }

  /// A round, or a smaller one with the same experts.
  Seconds round_seconds(const ExpertRound& round, const Counts& sequences, const Split& split) {
    const double part = std::accumulate(sequences.begin(), sequences.end(), 0.0) / round.sequences;
    WaySeconds layer, once, experts;
    const auto raise = [](WaySeconds& most, const WaySeconds& one, double times) {
      most.forward = std::max(most.forward, times * one.forward);
      most.backward = std::max(most.backward, times * one.backward);
    };
    for (std::size_t d = 0; d < costs_.devices(); ++d) {
      const ExpertKindCosts& kind = costs_.kinds[costs_.kind[d]];
      raise(layer, kind.layer, sequences[d]);
      raise(once, kind.once, sequences[d]);
      raise(experts, round.experts[costs_.kind[d]], part * split.experts[d] / costs_.experts);
    }
    const Seconds exchange =
        slowest_transfer(links_among(split), exchanged(sequences, split.experts));
    return costs_.layers * (layer.sum() + experts.sum() + 4 * exchange) + once.sum();
  }

  /// The last round, where the batch is no multiple of the others: nobody has more than else.
  Counts last_round(const ExpertRound& round, const Split& split) {
    const std::uint32_t left = costs_.batch % round.sequences;
    if (every_ && left > 0) return best_last_round(round, split, left);
    std::vector<ExpertHost> hosts;
    for (std::uint32_t d = 0; d < costs_.devices(); ++d)
      hosts.push_back({costs_.attention_seconds(d), split.sequences[d]});
    return expert_counts(left, hosts).value();
  }

  Counts best_last_round(const ExpertRound& round, const Split& split, std::uint32_t left) {
    Counts best;
    Seconds least = 0;
    for (Counts& some : all_shares(left, Devices(costs_.devices(), true))) {
      bool within = true;
      for (std::size_t d = 0; d < some.size(); ++d)
        within = within && some[d] <= split.sequences[d];
      if (!within) continue;
      const Seconds seconds = round_seconds(round, some, split);
      if (!best.empty() && seconds >= least) continue;
      least = seconds;
      best = std::move(some);
    }
    return best;
  }

  Seconds update_of(const Split& split, std::size_t d) const {
    const ExpertKindCosts& kind = costs_.kinds[costs_.kind[d]];
    return (split.sequences[d] > 0 ? kind.update : 0) +
           split.experts[d] * costs_.layers * kind.expert_update;
  }

  Seconds last_update(const Split& split) const {
    Seconds last = 0;
    for (std::size_t d = 0; d < costs_.devices(); ++d) last = std::max(last, update_of(split, d));
    return last;
  }

  Seconds reduce_seconds(const Split& split) {
    Devices members(costs_.devices());
    for (std::size_t d = 0; d < members.size(); ++d) members[d] = split.sequences[d] > 0;
    auto found = reduce_.find(members);
    if (found == reduce_.end())
      found = reduce_.emplace(members, ring_sum(request_.cluster, members, costs_.dense_gradient))
                  .first;
    return found->second;
  }

  Seconds step_seconds(const ExpertRound& round, const Split& split) {
    const auto whole = costs_.batch / round.sequences;
    Seconds step = whole * round_seconds(round, split.sequences, split);
    if (costs_.batch % round.sequences > 0)
      step += round_seconds(round, last_round(round, split), split);
    return step + reduce_seconds(split) + last_update(split);
  }

  ExpertPlan filled(const ExpertRound& round, const Split& split) {
    ExpertPlan plan;
    plan.round = round.sequences;
    plan.rounds = (costs_.batch + round.sequences - 1) / round.sequences;
    const Counts last = last_round(round, split);
    const auto whole = costs_.batch / round.sequences;
    for (std::size_t d = 0; d < costs_.devices(); ++d) {
      const ExpertKindCosts& kind = costs_.kinds[costs_.kind[d]];
      ExpertDevice device;
      device.sequences = split.sequences[d];
      const double all = double{1} * split.sequences[d] * whole + last[d];
      device.share = all / costs_.batch;
      device.experts.assign(costs_.layers, split.experts[d]);
      device.busy = all * (costs_.layers * kind.layer.sum() + kind.once.sum()) +
                    double{1} * costs_.batch / round.sequences * costs_.layers * split.experts[d] /
                        costs_.experts * round.experts[costs_.kind[d]].sum() +
                    update_of(split, d);
      device.bytes = static_cast<Bytes>(bytes(round, split, d));
      plan.devices.push_back(std::move(device));
    }
    plan.exchange = slowest_transfer(links_among(split), exchanged(split.sequences, split.experts));
    plan.reduce = reduce_seconds(split);
    plan.update = last_update(split);
    plan.step = step_seconds(round, split);
    return plan;
  }

  const PlanRequest& request_;
  const ExpertCosts& costs_;
  bool every_ = false;  ///< shares are few enough to try them all
  std::map<Devices, std::vector<LinkSpec>> links_;
  std::map<Devices, Seconds> reduce_;
  std::optional<ExpertPlan> best_;
};

}  // namespace

std::optional<ExpertPlan> best_expert_parallel(const PlanRequest& request,
                                               const ExpertCosts& costs) {
  return ExpertParallel(request, costs).best();
}

}  // namespace troupe
