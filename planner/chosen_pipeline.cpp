#include "planner/chosen_pipeline.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "planner/pipeline_fill.h"
#include "planner/pipeline_time.h"
#include "planner/pricer.h"
#include "planner/step_costs.h"

namespace troupe {
namespace {

/// Orders and cuts that are all looked at.
constexpr double exact_candidates = 4000;
/// Of one order and cut: choices of points that are all looked at.
constexpr std::size_t exact_points = 4096;
/// Pipelines that are looked at otherwise.
constexpr std::size_t filled_candidates = 24;

PlanOptions fused(PlanOptions options) {
  options.schedule = ScheduleKind::one_f_one_b;
  options.chunks = 1;
  options.pinned.clear();
  return options;
}

class PipelineChoice {
 public:
  PipelineChoice(const ModelSpec& model,
                 const ClusterSpec& cluster,
                 const ModelProfile& profile,
                 const PlanOptions& options,
                 StageFreedom freedom)
      : cluster_(cluster),
        options_(fused(options)),
        tied_(model.tied),
        pricer_(model, cluster, profile, options_),
        points_(model, cluster, profile, options_.shape.compute, freedom) {}

  std::optional<ChosenPipeline> run() {
    if (candidate_count() > exact_candidates) return propose();
    enumerate();
    if (best_) best_->exact = !cut_short_;
    return std::move(best_);
  }

  std::optional<ChosenPipeline> propose() {
    for (const FilledPipeline& filled :
         filled_pipelines(pricer_, cluster_, options_, tied_, filled_candidates, &points_))
      consider(filled.candidate);
    return std::move(best_);
  }

 private:
  /// Devices of one kind and node may be exchanged, unless a link of theirs is its own.
  std::uint32_t class_of(std::uint32_t device) const {
    if (!cluster_.overrides.empty()) return device;
    for (std::uint32_t d = 0; d < device; ++d)
      if (pricer_.device_kind(d) == pricer_.device_kind(device) &&
          cluster_.devices[d].node == cluster_.devices[device].node)
        return d;
    return device;
  }

  std::uint32_t most_stages() const { return std::min(pricer_.device_count(), pricer_.layers()); }

  /// Orders of k devices, those alike counted as one (class by class, j of a class are dealt into
  /// the k + j places), by cuts.
  double candidate_count() const {
    const auto choose = [](std::uint32_t n, std::uint32_t k) {
      double ways = 1;
      for (std::uint32_t i = 1; i <= k; ++i) ways = ways * (n - k + i) / i;
      return ways;
    };
    std::map<std::uint32_t, std::uint32_t> alike;
    for (std::uint32_t d = 0; d < pricer_.device_count(); ++d) ++alike[class_of(d)];
    std::vector<double> orders(most_stages() + 1);
    orders[0] = 1;
    for (const auto& [first, count] : alike)
      for (std::uint32_t k = most_stages(); k > 0; --k)
        for (std::uint32_t j = 1; j <= std::min(count, k); ++j)
          orders[k] += orders[k - j] * choose(k, j);
    double all = 0;
    for (std::uint32_t k = 1; k <= most_stages(); ++k)
      all += orders[k] * choose(pricer_.layers() - 1, k - 1);
    return all;
  }

  void enumerate() {
    std::vector<std::uint32_t> order;
    std::vector<bool> taken(pricer_.device_count());
    const std::function<void()> extend = [&] {
      if (!order.empty()) cut(order);
      if (order.size() == most_stages()) return;
      std::set<std::uint32_t> tried;
      for (std::uint32_t d = 0; d < pricer_.device_count(); ++d) {
        if (taken[d] || !tried.insert(class_of(d)).second) continue;
        taken[d] = true;
        order.push_back(d);
        extend();
        order.pop_back();
        taken[d] = false;
      }
    };
    extend();
  }

  void cut(const std::vector<std::uint32_t>& order) {
    const auto stages = static_cast<std::uint32_t>(order.size());
    std::vector<std::uint32_t> cuts{0};
    const std::function<void()> extend = [&] {
      const auto made = static_cast<std::uint32_t>(cuts.size()) - 1;
      if (made + 1 == stages) {
        cuts.push_back(pricer_.layers());
        consider({order, cuts});
        cuts.pop_back();
        return;
      }
      const std::uint32_t left = stages - made - 1;
      for (std::uint32_t next = cuts.back() + 1; next + left <= pricer_.layers(); ++next) {
        cuts.push_back(next);
        extend();
        cuts.pop_back();
      }
    };
    extend();
  }

  using Front = std::vector<StagePoint>;
  const Front& front(std::uint32_t device, LayerRange layers, std::uint32_t flight, Bytes edges) {
    const auto key = std::tuple{class_of(device), layers.first, layers.last, flight, edges};
    const auto [known, fresh] = fronts_.try_emplace(key);
    if (fresh) known->second = points_.front(DeviceId{device}, layers, flight, edges);
    return known->second;
  }

  Seconds busy(const StagePoint& point) const {
    const LayerSeconds& s = point.seconds;
    return options_.shape.microbatch_count * (s.forward + s.backward_input + s.backward_weight) +
           s.norm + s.update;
  }

  void consider(const Candidate& candidate) {
    const auto edges = pricer_.edge_bytes_of(candidate.order);
    std::vector<const Front*> fronts;
    Seconds bound = 0;
    std::size_t choices = 1;
    for (std::uint32_t s = 0; s < candidate.stage_count(); ++s) {
      const std::uint32_t flight =
          std::min(candidate.stage_count() - s, options_.shape.microbatch_count);
      fronts.push_back(
          &front(candidate.order[s], {candidate.cuts[s], candidate.cuts[s + 1]}, flight, edges[s]));
      if (fronts.back()->empty()) return;
      Seconds least = std::numeric_limits<Seconds>::infinity();
      for (const StagePoint& point : *fronts.back()) least = std::min(least, busy(point));
      bound = std::max(bound, least);
      choices = std::min(choices * fronts.back()->size(), 2 * exact_points);
    }
    if (best_ && bound >= best_->step) return;
    choose_points(candidate, fronts, choices <= exact_points);
  }

  void choose_points(const Candidate& candidate,
                     const std::vector<const Front*>& fronts,
                     bool all) {
    cut_short_ |= !all;
    StepCosts costs = pricer_.costs_of(candidate);
    std::vector<std::size_t> at(fronts.size());
    if (!all)
      for (std::size_t s = 0; s < fronts.size(); ++s) at[s] = least_busy(*fronts[s]);
    while (true) {
      for (std::size_t s = 0; s < fronts.size(); ++s) costs.stages[s] = (*fronts[s])[at[s]].seconds;
      const Seconds step = one_f_one_b_seconds(costs, options_.shape.microbatch_count,
                                               options_.transfer_slots, tied_);
      if (!best_ || step < best_->step) keep(candidate, fronts, at, step);
      if (!all) return;
      std::size_t s = 0;
      while (s < at.size() && ++at[s] == fronts[s]->size()) at[s++] = 0;
      if (s == at.size()) return;
    }
  }

  std::size_t least_busy(const Front& front) const {
    return static_cast<std::size_t>(
        std::min_element(front.begin(), front.end(),
                         [&](const auto& a, const auto& b) { return busy(a) < busy(b); }) -
        front.begin());
  }

  void keep(const Candidate& candidate,
            const std::vector<const Front*>& fronts,
            const std::vector<std::size_t>& at,
            Seconds step) {
    best_.emplace();
    best_->stages = pricer_.stages_of(candidate);
    for (std::size_t s = 0; s < fronts.size(); ++s) best_->points.push_back((*fronts[s])[at[s]]);
    best_->step = step;
  }

  const ClusterSpec& cluster_;
  const PlanOptions options_;
  bool tied_;
  Pricer pricer_;
  StagePoints points_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, Bytes>, Front>
      fronts_;
  std::optional<ChosenPipeline> best_;
  bool cut_short_ = false;  ///< choices of points were left out
};

}  // namespace

std::optional<ChosenPipeline> choose_pipeline(const ModelSpec& model,
                                              const ClusterSpec& cluster,
                                              const ModelProfile& profile,
                                              const PlanOptions& options,
                                              StageFreedom freedom) {
  return PipelineChoice(model, cluster, profile, options, freedom).run();
}

std::optional<ChosenPipeline> propose_pipeline(const ModelSpec& model,
                                               const ClusterSpec& cluster,
                                               const ModelProfile& profile,
                                               const PlanOptions& options,
                                               StageFreedom freedom) {
  return PipelineChoice(model, cluster, profile, options, freedom).propose();
}

Seconds step_with(const ChosenPipeline& pipeline,
                  const ModelSpec& model,
                  const ClusterSpec& cluster,
                  const ModelProfile& profile,
                  const PlanOptions& options,
                  std::uint32_t microbatches) {
  StepCosts costs = step_costs(pipeline.stages, cluster, model, profile, options.shape.compute);
  for (std::size_t s = 0; s < pipeline.points.size(); ++s)
    costs.stages[s] = pipeline.points[s].seconds;
  return one_f_one_b_seconds(costs, microbatches, options.transfer_slots, model.tied);
}

}  // namespace troupe
