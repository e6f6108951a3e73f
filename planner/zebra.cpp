#include "planner/zebra.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

namespace troupe {
namespace {

Error invalid(std::string text) {
  return {ErrorCode::invalid_input, std::move(text)};
}

/// Plays the four lanes, whose orders are all fixed: a pass in the order of the attention side
/// meets everything it needs.
class Zebra {
 public:
  Zebra(const ZebraProblem& problem, const ExpertMoves& moves)
      : problem_(problem),
        moves_(moves),
        ready_(problem.microbatches),
        squeezed_(problem.microbatches) {}

  Seconds play() {
    for (std::uint32_t layer = 0; layer < problem_.layers; ++layer) {
      for (std::uint32_t m = 0; m < problem_.microbatches; ++m) {
        run(attention_, ready_[m], problem_.forward.attention);
        ready_[m] = through_experts(attention_, layer, problem_.forward);
      }
      experts_here(layer, problem_.forward, squeezed_);
      for (std::uint32_t m = 0; m < problem_.microbatches; ++m)
        ready_[m] = std::max(ready_[m], squeezed_[m]);
    }
    for (std::uint32_t m = 0; m < problem_.microbatches; ++m) {
      run(attention_, ready_[m], problem_.forward.head);
      ready_[m] = run(attention_, attention_, problem_.backward.head);
    }
    for (std::uint32_t layer = problem_.layers; layer-- > 0;) {
      // Gradients are on their way to the experts as soon as they are there.
      for (std::uint32_t m = 0; m < problem_.microbatches; ++m) {
        squeezed_[m] = ready_[m];
        ready_[m] = through_experts(ready_[m], layer, problem_.backward);
      }
      experts_here(layer, problem_.backward, squeezed_);
      for (std::uint32_t m = 0; m < problem_.microbatches; ++m)
        ready_[m] = run(attention_, std::max(ready_[m], squeezed_[m]), problem_.backward.attention);
    }
    return std::max(attention_, *std::max_element(ready_.begin(), ready_.end()));
  }

 private:
  static Seconds run(Seconds& lane, Seconds ready, Seconds seconds) {
    return lane = std::max(lane, ready) + seconds;
  }

  double moved(std::uint32_t layer) const { return moves_.empty() ? 0 : moves_[layer]; }

  Seconds through_experts(Seconds from, std::uint32_t layer, const ZebraSeconds& seconds) {
    const double left =
        1 - moved(layer) * chunk_lost() * problem_.expert_devices / problem_.experts;
    const Seconds there = run(out_, from, seconds.exchange);
    return run(back_, run(experts_, there, seconds.experts * left), seconds.exchange);
  }

  /// The experts that attention devices took over, one microbatch after the other.
  void experts_here(std::uint32_t layer, const ZebraSeconds& seconds, std::vector<Seconds>& ready) {
    if (moved(layer) == 0) return;
    const Seconds one = seconds.experts_on_attention * problem_.expert_devices / problem_.experts *
                        moved(layer) * expert_chunk(problem_).gained;
    for (Seconds& each : ready) each = run(attention_, each, one);
  }

  double chunk_lost() const { return moves_.empty() ? 0 : expert_chunk(problem_).lost; }

  const ZebraProblem& problem_;
  const ExpertMoves& moves_;
  Seconds attention_ = 0, experts_ = 0, out_ = 0, back_ = 0;  ///< lanes: when they are free
  std::vector<Seconds> ready_;     ///< by microbatch: for the attention side
  std::vector<Seconds> squeezed_;  ///< by microbatch: experts on attention devices
};

bool divides(const ZebraProblem& problem) {
  const std::uint32_t m = problem.attention_devices, n = problem.expert_devices;
  return m % n == 0 || n % m == 0;
}

/// So many chunks, over the layers as evenly as whole ones can be.
ExpertMoves even_moves(std::uint32_t layers, std::uint32_t chunks) {
  ExpertMoves moves(layers);
  for (std::uint32_t layer = 0; layer < layers; ++layer)
    moves[layer] = (layer + 1) * chunks / layers - layer * chunks / layers;
  return moves;
}

/// 1 / sum of speeds: seconds of a side that shares one device's work by speed.
template <class Seconds_of>
Seconds shared_seconds(const std::vector<ZebraKind>& kinds,
                       const std::vector<bool>& attention,
                       bool side,
                       const Seconds_of& seconds) {
  double speed = 0;
  for (std::size_t k = 0; k < kinds.size(); ++k)
    if (attention[k] == side && kinds[k].devices > 0) {
      if (seconds(kinds[k]) <= 0) return 0;
      speed += kinds[k].devices / seconds(kinds[k]);
    }
  return speed > 0 ? 1 / speed : 0;
}

std::uint32_t devices_of(const std::vector<ZebraKind>& kinds,
                         const std::vector<bool>& attention,
                         bool side) {
  std::uint32_t count = 0;
  for (std::size_t k = 0; k < kinds.size(); ++k)
    if (attention[k] == side) count += kinds[k].devices;
  return count;
}

double least_memory(const std::vector<ZebraKind>& kinds,
                    const std::vector<bool>& attention,
                    bool side) {
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t k = 0; k < kinds.size(); ++k)
    if (attention[k] == side && kinds[k].devices > 0)
      least = std::min(least, kinds[k].memory_bytes);
  return least;
}

/// The part of its side's work that one device of each kind has.
std::vector<double> shares_of(const std::vector<ZebraKind>& kinds,
                              const std::vector<bool>& attention) {
  std::vector<double> shares(kinds.size());
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    const bool side = attention[k];
    const auto own = [side](const ZebraKind& kind) {
      return side ? kind.attention_forward + kind.attention_backward
                  : kind.experts_forward + kind.experts_backward;
    };
    if (own(kinds[k]) > 0) shares[k] = shared_seconds(kinds, attention, side, own) / own(kinds[k]);
  }
  return shares;
}

Status check(const std::vector<ZebraKind>& kinds, const ZebraCosts& costs) {
  const auto bad = [](double value) { return !(value >= 0) || !std::isfinite(value); };
  std::size_t present = 0;
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    const ZebraKind& kind = kinds[k];
    present += kind.devices > 0 ? 1 : 0;
    for (const double value :
         {kind.memory_bytes, kind.attention_forward, kind.attention_backward, kind.experts_forward,
          kind.experts_backward, kind.head_forward, kind.head_backward})
      if (bad(value))
        return invalid(
            fmt::format("kind {}: its memory and times must be finite and not negative", k));
  }
  if (present < 2)
    return invalid(fmt::format(
        "zebra splits attention and experts over two kinds of device or more; there is {}",
        present));
  if (kinds.size() > 16)
    return invalid(fmt::format("{} kinds of device; at most 16 are tried", kinds.size()));
  if (costs.layers == 0 || costs.microbatches == 0 || costs.experts == 0)
    return invalid(fmt::format("{} layers, {} microbatches and {} experts; at least 1 of each",
                               costs.layers, costs.microbatches, costs.experts));
  for (const double value :
       {costs.dense_state_bytes, costs.expert_state_bytes, costs.dense_kept_bytes,
        costs.expert_kept_bytes, costs.exchange_bytes, costs.bandwidth, costs.latency})
    if (bad(value)) return invalid("bytes and rates of the model must be finite and not negative");
  return {};
}

}  // namespace

ExpertChunk expert_chunk(const ZebraProblem& problem) {
  EXPECTS(divides(problem));
  return {std::max(1U, problem.expert_devices / problem.attention_devices),
          std::max(1U, problem.attention_devices / problem.expert_devices)};
}

Seconds zebra_seconds(const ZebraProblem& problem, const ExpertMoves& moves) {
  EXPECTS(problem.layers > 0 && problem.microbatches > 0 && problem.experts > 0);
  EXPECTS(moves.empty() || moves.size() == problem.layers);
  return Zebra(problem, moves).play();
}

Seconds disaggregated_seconds(const ZebraProblem& problem) {
  Seconds sum = 0;
  for (const ZebraSeconds* way : {&problem.forward, &problem.backward})
    sum += problem.layers * (way->attention + way->experts + 2 * way->exchange) + way->head;
  return problem.microbatches * sum;
}

Result<ExpertMoves> gather_and_squeeze(const ZebraProblem& problem) {
  if (!divides(problem)) {
    if (problem.expert_excess == 0) return ExpertMoves{};
    return Error{ErrorCode::does_not_fit,
                 fmt::format("experts do not fit {} devices, and whole experts cannot move to {}",
                             problem.expert_devices, problem.attention_devices)};
  }
  const ExpertChunk chunk = expert_chunk(problem);
  const std::uint32_t room = problem.attention_room / chunk.gained;
  const std::uint32_t needed = (problem.expert_excess + chunk.lost - 1) / chunk.lost;
  if (needed > room)
    return Error{ErrorCode::does_not_fit,
                 fmt::format("expert devices hold {} experts too many each; attention devices have "
                             "room for {}",
                             problem.expert_excess, problem.attention_room)};
  const Seconds experts = problem.forward.experts + problem.backward.experts;
  const Seconds here = problem.forward.experts_on_attention + problem.backward.experts_on_attention;
  const Seconds gather = experts - problem.forward.attention - problem.backward.attention;
  const Seconds squeeze =
      problem.expert_devices * (experts * chunk.lost + here * chunk.gained) / problem.experts;
  const std::uint32_t most = problem.experts / problem.expert_devices / chunk.lost;  // of a layer
  ExpertMoves moves(problem.layers);
  if (gather > 0 && squeeze > 0) {
    const double all = problem.layers * gather;
    const double alpha = std::min(room * squeeze / all, 1.0);
    const double beta = std::max(needed * squeeze / all, 1.0);
    Seconds bubble = 0;
    for (std::uint32_t& chunks : moves) {
      bubble += alpha * beta * gather;
      chunks = std::min(most, static_cast<std::uint32_t>(bubble / squeeze));
      bubble -= chunks * squeeze;
    }
  }
  const auto total = std::accumulate(moves.begin(), moves.end(), 0U);
  if (total < needed || total > room) moves = even_moves(problem.layers, needed);
  if (needed == 0 && zebra_seconds(problem, moves) >= zebra_seconds(problem)) return ExpertMoves{};
  return moves;
}

ZebraProblem zebra_problem(const std::vector<ZebraKind>& kinds,
                           const ZebraCosts& costs,
                           const std::vector<bool>& attention) {
  ZebraProblem problem;
  problem.attention_devices = devices_of(kinds, attention, true);
  problem.expert_devices = devices_of(kinds, attention, false);
  EXPECTS(problem.attention_devices > 0 && problem.expert_devices > 0);
  problem.layers = costs.layers;
  problem.microbatches = costs.microbatches;
  problem.experts = costs.experts;
  const double lanes = std::min(problem.attention_devices, problem.expert_devices);
  const Seconds exchange =
      costs.latency + (costs.bandwidth > 0 ? costs.exchange_bytes / lanes / costs.bandwidth : 0);
  const auto fill = [&](ZebraSeconds& way, auto own, auto expert, auto head) {
    way.attention = shared_seconds(kinds, attention, true, own);
    way.experts = shared_seconds(kinds, attention, false, expert);
    // A device's part of the experts on an attention device: the whole, by the expert devices.
    way.experts_on_attention = shared_seconds(kinds, attention, true, expert) *
                               problem.attention_devices / problem.expert_devices;
    way.head = shared_seconds(kinds, attention, true, head);
    way.exchange = exchange;
  };
  fill(
      problem.forward, [](const auto& k) { return k.attention_forward; },
      [](const auto& k) { return k.experts_forward; },
      [](const auto& k) { return k.head_forward; });
  fill(
      problem.backward, [](const auto& k) { return k.attention_backward; },
      [](const auto& k) { return k.experts_backward; },
      [](const auto& k) { return k.head_backward; });
  const double held = costs.layers * costs.microbatches;
  const double room = least_memory(kinds, attention, true) - costs.dense_state_bytes -
                      held * costs.dense_kept_bytes / problem.attention_devices;
  const double needed =
      costs.layers * costs.experts * costs.expert_state_bytes + held * costs.expert_kept_bytes;
  const double excess = needed / problem.expert_devices - least_memory(kinds, attention, false);
  const auto experts_in = [&](double bytes, double rounded) {
    return bytes > 0 && costs.expert_state_bytes > 0 ? static_cast<std::uint32_t>(rounded) : 0U;
  };
  problem.attention_room = experts_in(room, std::floor(room / costs.expert_state_bytes));
  problem.expert_excess = experts_in(excess, std::ceil(excess / costs.expert_state_bytes));
  return problem;
}

Result<ZebraPlan> plan_zebra(const std::vector<ZebraKind>& kinds, const ZebraCosts& costs) {
  TROUPE_TRY(check(kinds, costs));
  std::optional<ZebraPlan> best;
  Error error{ErrorCode::does_not_fit,
              "the model without its experts does not fit any kind of device"};
  for (std::uint32_t sides = 1; sides + 1 < (1U << kinds.size()); ++sides) {
    ZebraPlan plan;
    for (std::size_t k = 0; k < kinds.size(); ++k) plan.attention.push_back(sides >> k & 1U);
    if (devices_of(kinds, plan.attention, true) == 0 ||
        devices_of(kinds, plan.attention, false) == 0)
      continue;
    const ZebraProblem problem = zebra_problem(kinds, costs, plan.attention);
    const double held = costs.layers * costs.microbatches * costs.dense_kept_bytes;
    if (costs.dense_state_bytes + held / problem.attention_devices >
        least_memory(kinds, plan.attention, true))
      continue;
    auto moves = gather_and_squeeze(problem);
    if (!moves) {
      error = moves.error();
      continue;
    }
    plan.moves = std::move(*moves);
    plan.step = zebra_seconds(problem, plan.moves);
    plan.shares = shares_of(kinds, plan.attention);
    if (!best || plan.step < best->step) best = std::move(plan);
  }
  if (!best) return error;
  return std::move(*best);
}

Seconds expert_parallel_seconds(const std::vector<ZebraKind>& kinds, const ZebraCosts& costs) {
  double devices = 0;
  for (const ZebraKind& kind : kinds) devices += kind.devices;
  EXPECTS(devices > 0);
  const auto slowest = [&](auto seconds) {
    Seconds most = 0;
    for (const ZebraKind& kind : kinds)
      if (kind.devices > 0) most = std::max(most, seconds(kind) / devices);
    return most;
  };
  const double sent = costs.exchange_bytes / devices * (devices - 1) / devices;
  const Seconds exchange = costs.latency + (costs.bandwidth > 0 ? sent / costs.bandwidth : 0);
  const Seconds layer = slowest([](const auto& k) { return k.attention_forward; }) +
                        slowest([](const auto& k) { return k.attention_backward; }) +
                        slowest([](const auto& k) { return k.experts_forward; }) +
                        slowest([](const auto& k) { return k.experts_backward; }) + 4 * exchange;
  const Seconds head = slowest([](const auto& k) { return k.head_forward; }) +
                       slowest([](const auto& k) { return k.head_backward; });
  return costs.microbatches * (costs.layers * layer + head);
}

}  // namespace troupe
