#include "planner/chosen_pipeline.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "planner/orders_and_cuts.h"
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
  options.recompute = Recompute::none;  // the points say who computes again
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
        points_(model, cluster, profile, options_.shape.compute, freedom),
        classes_(classes_of(cluster, pricer_)) {}

  std::optional<ChosenPipeline> run() {
    if (candidate_count() > exact_candidates) return propose();
    enumerate();
    if (best_) best_->exact = !cut_short_;
    return finished();
  }

  std::optional<ChosenPipeline> propose() {
    for (const FilledPipeline& filled :
         filled_pipelines(pricer_, cluster_, options_, tied_, filled_candidates, &points_))
      consider(filled.candidate);
    return finished();
  }

 private:
  std::optional<ChosenPipeline> finished() {
    if (best_) best_->candidates = candidates_;
    return std::move(best_);
  }

  /// Devices of one kind and node may be exchanged, unless a link of theirs is its own.
  static DeviceClasses classes_of(const ClusterSpec& cluster, const Pricer& pricer) {
    DeviceClasses out;
    for (std::uint32_t d = 0; d < pricer.device_count(); ++d) {
      std::uint32_t first = cluster.overrides.empty() ? 0 : d;
      while (first < d && (pricer.device_kind(first) != pricer.device_kind(d) ||
                           cluster.devices[first].node != cluster.devices[d].node))
        ++first;
      out.push_back(first);
    }
    return out;
  }

  std::uint32_t most_stages() const { return std::min(pricer_.device_count(), pricer_.layers()); }

  double candidate_count() const {
    const std::vector<double> orders = order_counts(classes_, most_stages());
    double all = 0;
    for (std::uint32_t k = 1; k <= most_stages(); ++k)
      all += orders[k] * binomial(pricer_.layers() - 1, k - 1);
    return all;
  }

  void enumerate() {
    for (std::uint32_t k = 1; k <= most_stages(); ++k)
      each_order(classes_, k, [&](const std::vector<std::uint32_t>& order) {
        each_cut(pricer_.layers(), k, [&](const std::vector<std::uint32_t>& cuts) {
          consider({order, cuts});
        });
      });
  }

  using Front = std::vector<StagePoint>;
  const Front& front(std::uint32_t device, LayerRange layers, std::uint32_t flight, Bytes edges) {
    const auto key = std::tuple{classes_[device], layers.first, layers.last, flight, edges};
    const auto [known, fresh] = fronts_.try_emplace(key);
    if (fresh) known->second = points_.front(DeviceId{device}, layers, flight, edges);
    return known->second;
  }

  Seconds busy(const StagePoint& point) const {
    return step_sum(point.seconds, options_.shape.microbatch_count);
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
    ++candidates_;
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
    for (std::size_t s = 0; s < fronts.size(); ++s) {
      best_->points.push_back((*fronts[s])[at[s]]);
      best_->stages[s].recompute = best_->points[s].choices.recompute;
    }
    best_->step = step;
  }

  const ClusterSpec& cluster_;
  const PlanOptions options_;
  bool tied_;
  Pricer pricer_;
  StagePoints points_;
  DeviceClasses classes_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, Bytes>, Front>
      fronts_;
  std::optional<ChosenPipeline> best_;
  std::size_t candidates_ = 0;
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
