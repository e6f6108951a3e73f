#include "apps/plan_inputs.h"

#include <fmt/format.h>

#include "kernels/stage.h"
#include "planner/architecture_profile.h"
#include "planner/plan_choice.h"

namespace troupe {
namespace {

/// Layers of such a model cannot be run to measure a device.
Status check_rated(const ClusterSpec& cluster) {
  for (const DeviceSpec& device : cluster.devices)
    if (device.needs_measuring())
      return Error{ErrorCode::invalid_input,
                   fmt::format("plan: device {} is a CPU without rates, and a model that cannot be "
                               "trained yet cannot be measured on it; \"troupe profile CONF --out "
                               "here.toml\" measures its rates: name the file as cluster.profile",
                               device.name)};
  return {};
}

}  // namespace

std::string PlanInputs::looked_at() const {
  return trained() ? std::string{} : to_text(note());
}

void PlanInputs::add_note(std::optional<Plan>& plan) const {
  if (plan && !trained()) plan->notes.insert(plan->notes.begin(), note());
}

ModelProfile PlanInputs::profile_at(const StepShape& shape) const {
  return trained() ? profile_model(config_.spec.model, shape)
                   : architecture_profile(config_.model, shape);
}

Result<ClusterSpec> PlanInputs::cluster() const {
  if (trained()) return measured_cluster(config_.spec);
  ClusterSpec out = config_.spec.cluster;
  out.copy_between_devices |= config_.spec.copy_between_devices;
  // What layers of other models took says nothing of these.
  for (DeviceSpec& device : out.devices) {
    device.measured.clear();
    device.measured_by_size.clear();
  }
  TROUPE_TRY(check_rated(out));
  return out;
}

Result<PlannedRun> PlanInputs::plan() const {
  const RunSpec& spec = config_.spec;
  if (trained()) return plan_training(spec);
  auto priced = cluster();
  if (!priced) return priced.error();
  PlannedRun out;
  out.cluster = std::move(*priced);
  PlanOptions options = spec.plan;
  options.shape = spec.shape;
  auto plan = choose_plan(spec.model, out.cluster, profile_at(spec.shape), options,
                          [this](const StepShape& shape) { return profile_at(shape); });
  if (!plan) return plan.error();
  out.plan = std::move(*plan);
  out.plan.epoch = PlanEpoch{1};
  out.plan.notes.insert(out.plan.notes.begin(), note());
  return out;
}

}  // namespace troupe
