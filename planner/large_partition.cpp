#include "planner/large_partition.h"

#include <algorithm>
#include <optional>

#include "planner/pipeline_fill.h"
#include "planner/pipeline_time.h"
#include "planner/split_mix.h"

namespace troupe {
namespace {

/// Pairs of F and B that the recurrence may play in all: some tenths of a second.
constexpr std::size_t pair_budget = 8'000'000;
constexpr std::size_t most_filled = 24;
/// Filled pipelines that are improved, and kept.
constexpr std::size_t most_starts = 3;
constexpr std::size_t most_kept = 4;

struct Judged {
  Candidate candidate;
  Seconds step = 0;
};

class LargeSearch {
 public:
  LargeSearch(const Pricer& pricer,
              const ClusterSpec& cluster,
              const PlanOptions& options,
              bool tied)
      : pricer_(pricer), cluster_(cluster), options_(options), tied_(tied) {
    for (std::uint32_t d = 0; d < pricer.device_count(); ++d) {
      const std::uint32_t kind = pricer.device_kind(d);
      if (kind >= of_kind_.size()) of_kind_.resize(kind + 1);
      of_kind_[kind].push_back(d);
    }
  }

  std::vector<Candidate> run() {
    const bool recurs = options_.schedule == ScheduleKind::one_f_one_b;
    std::vector<Judged> found;
    for (FilledPipeline& one : filled_pipelines(pricer_, cluster_, options_, tied_, most_filled)) {
      if (pricer_.fit(one.candidate).over > 0) continue;
      const Seconds step = recurs ? step_of(one.candidate) : one.estimate;
      found.push_back({std::move(one.candidate), step});
    }
    sort(found);
    if (recurs) {
      SplitMix random(1);
      const std::size_t starts = std::min(found.size(), most_starts);
      for (std::size_t i = 0; i < starts; ++i)
        improve(found[i], random,
                spent_ + (pair_budget - std::min(pair_budget, spent_)) / (starts - i));
      sort(found);
    }
    std::vector<Candidate> best;
    for (const Judged& one : found)
      if (best.size() < most_kept &&
          std::find(best.begin(), best.end(), one.candidate) == best.end())
        best.push_back(one.candidate);
    return best;
  }

 private:
  static void sort(std::vector<Judged>& found) {
    std::stable_sort(found.begin(), found.end(),
                     [](const Judged& a, const Judged& b) { return a.step < b.step; });
  }

  /// Plays as many microbatches as fill the pipeline twice; the rest comes at the pace of the
  /// slowest stage.
  Seconds step_of(const Candidate& candidate) {
    const StepCosts costs = pricer_.costs_of(candidate);
    const std::uint32_t all = options_.shape.microbatch_count;
    const std::uint32_t played = std::min(all, 2 * candidate.stage_count() + 8);
    spent_ += std::size_t{played} * candidate.stage_count();
    const Seconds step = one_f_one_b_seconds(costs, played, options_.transfer_slots, tied_);
    return step + (all - played) * pace_of(costs);
  }

  /// Between two microbatches: the slowest stage, or the round trip from a stage to the end and
  /// back, shared by its microbatches in flight.
  Seconds pace_of(const StepCosts& costs) const {
    Seconds pace = 0;
    Seconds round_trip = 0;
    const std::size_t stages = costs.stages.size();
    for (std::size_t s = stages; s-- > 0;) {
      const LayerSeconds& one = costs.stages[s];
      const Seconds own =
          one.forward + one.backward_input + one.backward_weight + 2 * costs.overhead[s];
      round_trip += own;
      if (s + 1 < stages) round_trip += costs.transfer_forward[s] + costs.transfer_backward[s + 1];
      pace = std::max({pace, own, round_trip / static_cast<double>(stages - s)});
    }
    return pace;
  }

  // ---- improving ----

  static std::uint32_t pick(SplitMix& random, std::size_t count) {
    return static_cast<std::uint32_t>(random.below(count));
  }

  /// A free device of a random kind, beside the neighbour's node where one is free there.
  std::optional<std::uint32_t> free_device(const Candidate& candidate,
                                           std::size_t beside,
                                           SplitMix& random) const {
    const NodeId node = cluster_.devices[candidate.order[beside]].node;
    std::optional<std::uint32_t> found;
    for (const std::uint32_t d : of_kind_[pick(random, of_kind_.size())]) {
      if (found && cluster_.devices[d].node != node) continue;
      if (std::find(candidate.order.begin(), candidate.order.end(), d) != candidate.order.end())
        continue;
      found = d;
      if (cluster_.devices[d].node == node) break;
    }
    return found;
  }

  /// One random move; nothing where it is not possible.
  std::optional<Candidate> moved(const Candidate& base, SplitMix& random) const {
    std::optional<Candidate> next;
    switch (pick(random, 6)) {
      case 0:
      case 1: next = layer_moved(base, random); break;
      case 2: next = exchanged(base, random); break;
      case 3: next = replaced(base, random); break;
      case 4: next = cut_in_two(base, random); break;
      default: next = dropped(base, random); break;
    }
    if (!next) return next;
    for (std::size_t i = 0; i + 1 < next->cuts.size(); ++i)
      if (next->cuts[i] >= next->cuts[i + 1]) return std::nullopt;
    return next;
  }

  /// A layer from one stage to another: the cuts between them move.
  std::optional<Candidate> layer_moved(const Candidate& base, SplitMix& random) const {
    const std::size_t s = pick(random, base.order.size());
    const std::size_t t = pick(random, base.order.size());
    if (s == t) return std::nullopt;
    Candidate next = base;
    for (std::size_t i = std::min(s, t) + 1; i <= std::max(s, t); ++i)
      next.cuts[i] += s < t ? ~0u : 1u;
    return next;
  }

  /// Two unlike stages change places, their layers with them.
  std::optional<Candidate> exchanged(const Candidate& base, SplitMix& random) const {
    const std::size_t s = pick(random, base.order.size());
    const std::size_t t = pick(random, base.order.size());
    const std::size_t a = std::min(s, t);
    const std::size_t b = std::max(s, t);
    if (pricer_.device_kind(base.order[a]) == pricer_.device_kind(base.order[b]) &&
        cluster_.devices[base.order[a]].node == cluster_.devices[base.order[b]].node)
      return std::nullopt;
    Candidate next = base;
    std::swap(next.order[a], next.order[b]);
    const std::uint32_t gain = base.cuts[b + 1] - base.cuts[b] - base.cuts[a + 1] + base.cuts[a];
    for (std::size_t i = a + 1; i <= b; ++i) next.cuts[i] += gain;
    return next;
  }

  std::optional<Candidate> replaced(const Candidate& base, SplitMix& random) const {
    const std::size_t s = pick(random, base.order.size());
    const auto device = free_device(base, s, random);
    if (!device) return std::nullopt;
    Candidate next = base;
    next.order[s] = *device;
    return next;
  }

  std::optional<Candidate> cut_in_two(const Candidate& base, SplitMix& random) const {
    const std::size_t s = pick(random, base.order.size());
    const std::uint32_t size = base.cuts[s + 1] - base.cuts[s];
    const auto device = free_device(base, s, random);
    if (size < 2 || !device) return std::nullopt;
    Candidate next = base;
    const auto at = static_cast<std::ptrdiff_t>(s + pick(random, 2));
    next.order.insert(next.order.begin() + at, *device);
    next.cuts.insert(next.cuts.begin() + static_cast<std::ptrdiff_t>(s) + 1,
                     base.cuts[s] + 1 + pick(random, size - 1));
    return next;
  }

  /// A stage goes, its layers to a neighbour.
  std::optional<Candidate> dropped(const Candidate& base, SplitMix& random) const {
    const std::size_t stages = base.order.size();
    if (stages < 2) return std::nullopt;
    const std::size_t s = pick(random, stages);
    const std::size_t cut = s == 0 ? 1 : s + 1 == stages ? s : s + pick(random, 2);
    Candidate next = base;
    next.order.erase(next.order.begin() + static_cast<std::ptrdiff_t>(s));
    next.cuts.erase(next.cuts.begin() + static_cast<std::ptrdiff_t>(cut));
    return next;
  }

  void improve(Judged& best, SplitMix& random, std::size_t until) {
    // Moves that are refused without being played end too.
    std::size_t tries = (until - std::min(until, spent_)) / 400;
    while (spent_ < until && tries-- > 0) {
      auto next = moved(best.candidate, random);
      if (!next || pricer_.lower_bound(*next) > best.step || pricer_.fit(*next).over > 0) continue;
      const Seconds step = step_of(*next);
      if (step < best.step ||
          (step == best.step && next->order.size() <= best.candidate.order.size()))
        best = {std::move(*next), step};
    }
  }

  const Pricer& pricer_;
  const ClusterSpec& cluster_;
  const PlanOptions& options_;
  bool tied_;
  std::size_t spent_ = 0;
  std::vector<std::vector<std::uint32_t>> of_kind_;  ///< devices by kind
};

}  // namespace

std::vector<Candidate> large_partitions(const Pricer& pricer,
                                        const ClusterSpec& cluster,
                                        const PlanOptions& options,
                                        bool tied) {
  return LargeSearch(pricer, cluster, options, tied).run();
}

}  // namespace troupe
