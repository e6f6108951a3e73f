#include <algorithm>
#include <cmath>
#include <numeric>

#include "planner/expert_costs.h"

namespace troupe {
namespace {

using Counts = std::vector<std::uint32_t>;
using Devices = std::vector<bool>;

/// Kinds on two sides, with the links between them.
struct Sides {
  Devices attention, experts;  ///< by device
  std::vector<LinkSpec> out, back;
};

/// Sequences of a round on attention devices, experts of each layer on the others, by device.
struct Split {
  Counts sequences, experts;
};

class ZebraSearch {
 public:
  ZebraSearch(const PlanRequest& request, const ExpertCosts& costs)
      : request_(request), costs_(costs) {}

  std::optional<ExpertPlan> best() {
    constexpr std::uint32_t few_kinds = 4, most_rounds = 48, most_rounds_of_many = 8;
    const std::size_t kinds = costs_.kinds.size();
    few_ = kinds <= few_kinds;
    std::vector<ExpertRound> rounds;
    for (const std::uint32_t sequences :
         round_sizes(costs_.batch, few_ ? most_rounds : most_rounds_of_many))
      rounds.push_back({sequences, 1, expert_seconds(request_, costs_, sequences)});
    for (std::uint32_t way = 1; way + 1 < (1U << kinds); ++way) {
      const Sides sides = sides_of(way);
      for (ExpertRound& round : rounds) try_passes(sides, round);
    }
    return std::move(best_);
  }

 private:
  Sides sides_of(std::uint32_t way) const {
    Sides out;
    for (const std::uint32_t kind : costs_.kind) {
      out.attention.push_back((way >> kind & 1U) != 0);
      out.experts.push_back(!out.attention.back());
    }
    out.out = links_between(request_.cluster, out.attention, out.experts);
    out.back = links_between(request_.cluster, out.experts, out.attention);
    return out;
  }

  /// All rounds of a step in flight at once, or as few parts of them as fit.
  void try_passes(const Sides& sides, ExpertRound& round) {
    const std::uint32_t rounds = (costs_.batch + round.sequences - 1) / round.sequences;
    for (std::uint32_t passes = 1;; passes *= 2) {
      round.held = (rounds + passes - 1) / passes;
      if (try_round(sides, round) || round.held == 1) return;
    }
  }

  /// Whether anything fits.
  bool try_round(const Sides& sides, const ExpertRound& round) {
    bool fit = false;
    const auto sequences =
        some_of(shares_of_pieces(round.sequences, attention_hosts(sides, round)));
    const auto experts = some_of(expert_shares(sides, round));
    for (const Counts& some : sequences)
      for (const Counts& others : experts) fit = try_split(sides, round, {some, others}) || fit;
    return fit;
  }

  /// The first, where there are so many sides that others would take too long.
  std::vector<Counts> some_of(std::vector<Counts> all) const {
    if (!few_ && all.size() > 1) all.resize(1);
    return all;
  }

  std::vector<ExpertHost> attention_hosts(const Sides& sides, const ExpertRound& round) const {
    std::vector<ExpertHost> hosts;
    for (std::uint32_t d = 0; d < costs_.devices(); ++d)
      hosts.push_back({costs_.attention_seconds(d),
                       sides.attention[d] ? sequences_in(costs_, round, costs_.memory[d]) : 0});
    return hosts;
  }

  /// Within the memory of expert devices; where that is too little, by their speed alone, for
  /// attention devices may take the rest.
  std::vector<Counts> expert_shares(const Sides& sides, const ExpertRound& round) const {
    std::vector<ExpertHost> hosts;
    for (std::uint32_t d = 0; d < costs_.devices(); ++d)
      hosts.push_back({round.experts[costs_.kind[d]].sum(),
                       sides.experts[d] ? experts_in(costs_, round, costs_.memory[d]) : 0});
    auto shares = shares_of_pieces(costs_.experts, hosts);
    if (!shares.empty()) return shares;
    for (std::uint32_t d = 0; d < costs_.devices(); ++d)
      hosts[d].most = sides.experts[d] ? costs_.experts : 0;
    return shares_of_pieces(costs_.experts, hosts);
  }

  /// As planner/zebra.h has it, each side as slow as its slowest device with whole sequences and
  /// experts.
  ZebraProblem problem_of(const Sides& sides, const ExpertRound& round, const Split& split) const {
    ZebraProblem out;
    out.attention_devices = static_cast<std::uint32_t>(std::count_if(
        split.sequences.begin(), split.sequences.end(), [](auto n) { return n > 0; }));
    out.expert_devices = static_cast<std::uint32_t>(
        std::count_if(split.experts.begin(), split.experts.end(), [](auto n) { return n > 0; }));
    out.layers = costs_.layers;
    out.microbatches = round.held;
    const std::uint32_t most_experts =
        *std::max_element(split.experts.begin(), split.experts.end());
    // As if every device had as many as the one that has most: the side is as slow as that.
    out.experts = most_experts * out.expert_devices;
    const auto raise = [&](ZebraSeconds& way, Seconds WaySeconds::*half, std::size_t d) {
      const ExpertKindCosts& kind = costs_.kinds[costs_.kind[d]];
      const Seconds all = round.experts[costs_.kind[d]].*half;
      way.attention = std::max(way.attention, split.sequences[d] * kind.layer.*half);
      way.head = std::max(way.head, split.sequences[d] * kind.once.*half);
      way.experts = std::max(way.experts, all * split.experts[d] / costs_.experts);
      if (split.sequences[d] > 0)
        way.experts_on_attention =
            std::max(way.experts_on_attention, all * most_experts / costs_.experts);
    };
    for (std::size_t d = 0; d < costs_.devices(); ++d) {
      raise(out.forward, &WaySeconds::forward, d);
      raise(out.backward, &WaySeconds::backward, d);
    }
    const std::uint32_t most_sequences =
        *std::max_element(split.sequences.begin(), split.sequences.end());
    const double most = std::max(double{1} * most_sequences,
                                 double{1} * round.sequences * most_experts / costs_.experts);
    out.forward.exchange = out.backward.exchange =
        std::max(slowest_transfer(sides.out, most * costs_.exchange),
                 slowest_transfer(sides.back, most * costs_.exchange));
    add_room(out, round, split);
    return out;
  }

  /// Whole experts that attention devices have room for, and that expert devices hold too many.
  void add_room(ZebraProblem& out, const ExpertRound& round, const Split& split) const {
    // Scratch of a layer's experts is taken whole, though few of them may be there.
    const double scratch = expert_bytes(costs_, round, 0, costs_.experts);
    const double one = expert_bytes(costs_, round, 1, 0);
    double room = double{1} * costs_.layers * costs_.experts, excess = 0;
    for (std::size_t d = 0; d < costs_.devices(); ++d) {
      if (split.sequences[d] > 0)
        room = std::min(
            room,
            (costs_.memory[d] - dense_bytes(costs_, round, split.sequences[d]) - scratch) / one);
      if (split.experts[d] > 0)
        excess = std::max(excess, (expert_bytes(costs_, round, costs_.layers * split.experts[d],
                                                split.experts[d]) -
                                   costs_.memory[d]) /
                                      one);
    }
    out.attention_room = static_cast<std::uint32_t>(std::max(room, 0.0));
    out.expert_excess = static_cast<std::uint32_t>(std::ceil(std::max(excess, 0.0)));
  }

  bool try_split(const Sides& sides, const ExpertRound& round, const Split& split) {
    const ZebraProblem problem = problem_of(sides, round, split);
    if (best_ && least_seconds(problem, round) >= best_->step) return true;
    const auto moves = gather_and_squeeze(problem);
    if (!moves) return false;
    bool fit = false;
    if (!moves->empty()) fit = try_moves(round, split, problem, *moves);
    if (problem.expert_excess == 0) fit = try_moves(round, split, problem, {}) || fit;
    return fit;
  }

  /// No moves end a step sooner: attention devices do what is theirs in any case.
  Seconds least_seconds(const ZebraProblem& problem, const ExpertRound& round) const {
    const std::uint32_t rounds = (costs_.batch + round.sequences - 1) / round.sequences;
    Seconds attention = 0;
    for (const ZebraSeconds* way : {&problem.forward, &problem.backward})
      attention += problem.layers * way->attention + way->head;
    return rounds * attention;
  }

  bool try_moves(const ExpertRound& round,
                 const Split& split,
                 const ZebraProblem& problem,
                 const ExpertMoves& moves) {
    ExpertPlan plan = filled(round, split, problem, moves);
    if (plan.devices.empty()) return false;
    for (std::size_t d = 0; d < costs_.devices(); ++d)
      if (static_cast<double>(plan.devices[d].bytes) > costs_.memory[d]) return false;
    Devices members;
    for (const std::uint32_t sequences : split.sequences) members.push_back(sequences > 0);
    plan.reduce = ring_sum(request_.cluster, members, costs_.dense_gradient);
    const std::uint32_t rest = plan.rounds % round.held;
    const std::uint32_t whole = plan.rounds / round.held;
    plan.step = whole * zebra_seconds(problem, moves);
    if (rest > 0) {
      ZebraProblem last = problem;
      last.microbatches = rest;
      plan.step += zebra_seconds(last, moves);
    }
    plan.step += plan.reduce + plan.update;
    if (!best_ || plan.step < best_->step) best_ = std::move(plan);
    return true;
  }

  /// All but the step. Without devices: one would have to give away more experts than it has.
  ExpertPlan filled(const ExpertRound& round,
                    const Split& split,
                    const ZebraProblem& problem,
                    const ExpertMoves& moves) const {
    ExpertPlan plan;
    plan.zebra = true;
    plan.round = round.sequences;
    plan.rounds = (costs_.batch + round.sequences - 1) / round.sequences;
    plan.passes = (plan.rounds + round.held - 1) / round.held;
    plan.moves = moves;
    plan.exchange = problem.forward.exchange;
    const ExpertChunk chunk = moves.empty() ? ExpertChunk{0, 0} : expert_chunk(problem);
    for (std::size_t d = 0; d < costs_.devices(); ++d) {
      ExpertDevice device;
      device.sequences = split.sequences[d];
      device.share = double{1} * split.sequences[d] / round.sequences;
      for (std::uint32_t layer = 0; layer < costs_.layers; ++layer) {
        const std::uint32_t chunks = moves.empty() ? 0 : moves[layer];
        const std::uint32_t lost = split.experts[d] > 0 ? chunks * chunk.lost : 0;
        if (lost > split.experts[d]) return {};
        device.experts.push_back(split.experts[d] - lost +
                                 (split.sequences[d] > 0 ? chunks * chunk.gained : 0));
      }
      fill_costs(device, round, d);
      plan.update = std::max(plan.update, update_of(device, d));
      plan.devices.push_back(std::move(device));
    }
    return plan;
  }

  void fill_costs(ExpertDevice& device, const ExpertRound& round, std::size_t d) const {
    const auto held = std::accumulate(device.experts.begin(), device.experts.end(), 0U);
    const auto most = *std::max_element(device.experts.begin(), device.experts.end());
    device.bytes = static_cast<Bytes>(dense_bytes(costs_, round, device.sequences) +
                                      expert_bytes(costs_, round, held, most));
    device.busy =
        device.share * costs_.batch * costs_.attention_seconds(static_cast<std::uint32_t>(d)) +
        double{1} * costs_.batch / round.sequences * held / costs_.experts *
            round.experts[costs_.kind[d]].sum() +
        update_of(device, d);
  }

  Seconds update_of(const ExpertDevice& device, std::size_t d) const {
    const ExpertKindCosts& kind = costs_.kinds[costs_.kind[d]];
    return (device.sequences > 0 ? kind.update : 0) +
           std::accumulate(device.experts.begin(), device.experts.end(), 0.0) * kind.expert_update;
  }

  const PlanRequest& request_;
  const ExpertCosts& costs_;
  bool few_ = true;  ///< kinds: every split is tried
  std::optional<ExpertPlan> best_;
};

}  // namespace

std::optional<ExpertPlan> best_zebra(const PlanRequest& request, const ExpertCosts& costs) {
  return ZebraSearch(request, costs).best();
}

}  // namespace troupe
