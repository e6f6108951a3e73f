#include "planner/replan.h"

#include <fmt/format.h>

#include "planner/plan_choice.h"
#include "planner/printable.h"

namespace troupe {
namespace {

void slow_down(LayerSeconds& seconds, DriftTerm term, double factor) {
  if (term == DriftTerm::optimizer) {
    seconds.norm *= factor;
    seconds.update *= factor;
    return;
  }
  seconds.forward *= factor;
  seconds.backward_input *= factor;
  seconds.backward_weight *= factor;
}

/// Measured seconds can be changed action by action; of rates alone, all of them are.
void slow_down(DeviceSpec& device, DriftTerm term, double factor) {
  for (auto& [kind, seconds] : device.measured) slow_down(seconds, term, factor);
  for (auto& [kind, known] : device.measured_by_size)
    for (auto& [size, seconds] : known) slow_down(seconds, term, factor);
  if (!device.measured.empty()) return;
  DeviceRates& rates = device.rates;
  for (double* rate : {&rates.matmul_f32, &rates.matmul_bf16, &rates.vector_f32, &rates.memory})
    *rate /= factor;
  rates.launch *= factor;
}

}  // namespace

std::optional<ClusterSpec> cluster_with(const Drift& drift, const ClusterSpec& cluster) {
  const DriftCause& cause = drift.cause;
  if (cause.term == DriftTerm::overhead) return std::nullopt;
  if (drift.predicted_term <= 0 || drift.measured_term <= 0) return std::nullopt;
  const double factor = drift.measured_term / drift.predicted_term;
  ClusterSpec changed = cluster;
  if (cause.term != DriftTerm::link) {
    slow_down(changed.devices.at(cause.device.index()), cause.term, factor);
    return changed;
  }
  LinkSpec link = cluster.link(cause.device, cause.to);
  link.latency *= factor;
  link.bandwidth /= factor;
  changed.overrides[{cause.device.value, cause.to.value}] = link;
  return changed;
}

std::optional<Replanned> replan(const Plan& plan, const PlanRequest& request, const Drift& drift) {
  const auto cluster = cluster_with(drift, request.cluster);
  if (!cluster) return std::nullopt;
  PlanOptions options = request.options;
  options.pinned = plan.stages;
  const auto kept = make_plan(request.model, *cluster, request.profile, options);
  options.pinned.clear();
  const auto other = choose_plan(request.model, *cluster, request.profile, options, {});
  if (!kept || !other) return std::nullopt;
  if (other->predicted_step > (1 - worthwhile_gain) * kept->predicted_step) return std::nullopt;
  return Replanned{other->stages, kept->predicted_step, other->predicted_step};
}

std::string to_text(const Replanned& other, const ClusterSpec& cluster) {
  std::string text = fmt::format("another plan would take {} a step instead of {}: layers",
                                 format_seconds(other.step), format_seconds(other.kept_step));
  for (std::size_t s = 0; s < other.stages.size(); ++s) {
    const StagePlan& stage = other.stages[s];
    text += fmt::format("{} {} on {}", s == 0 ? "" : ",", layers_text(stage.layers),
                        cluster.devices.at(stage.device.index()).name);
  }
  return text;
}

}  // namespace troupe
