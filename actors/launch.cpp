#include "actors/launch.h"

#include <fmt/format.h>

#include <algorithm>

#include "actors/measure.h"
#include "actors/run_session.h"
#include "actors/system_config.h"
#include "kernels/stage.h"
#include "planner/plan_choice.h"
#include "planner/step_costs.h"

namespace troupe {

std::string build_text() {
  return fmt::format("0.1.0 (protocol {})", protocol_version);
}

namespace {

ClusterSpec cluster_of(const RunSpec& spec) {
  ClusterSpec cluster = spec.cluster;
  cluster.copy_between_devices |= spec.copy_between_devices;
  return cluster;
}

Result<Plan> plan_on(const RunSpec& spec, const ClusterSpec& cluster) {
  PlanOptions options = spec.plan;
  options.shape = spec.shape;
  return choose_plan(spec.model, cluster, profile_model(spec.model, spec.shape), options,
                     [&](const StepShape& shape) { return profile_model(spec.model, shape); });
}

/// What fits does not depend on how fast devices are: it is known before any is measured, which
/// takes time, and memory beyond their caps.
Status check_fits(const RunSpec& spec) {
  ClusterSpec cluster = cluster_of(spec);
  bool measures = false;
  for (DeviceSpec& device : cluster.devices) {
    if (!device.needs_measuring()) continue;
    measures = true;
    for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head})
      device.measured[kind] = {1e-3, 1e-3, 1e-3, 1e-3, 1e-3};
  }
  if (!measures) return {};
  const auto plan = plan_on(spec, cluster);
  if (!plan && plan.error().code == ErrorCode::does_not_fit) return plan.error();
  return {};
}

}  // namespace

Result<RunOutcome> run_training(const RunSpec& spec,
                                const RunCallbacks& callbacks,
                                const RunOptions& options) {
  TROUPE_TRY(check_fits(spec));
  const bool remote = std::any_of(spec.cluster.nodes.begin(), spec.cluster.nodes.end(),
                                  [](const NodeSpec& node) { return node.own_process; });
  SystemConfig config(3, remote);
  caf::actor_system system(config);
  RunSession session(system, spec, callbacks, options);
  return session.run();
}

RunSpec settled(RunSpec spec, const Plan& plan) {
  if (spec.shape != plan.shape)
    spec.cluster =
        with_microbatches(std::move(spec.cluster), profile_model(spec.model, spec.shape),
                          profile_model(spec.model, plan.shape), plan.shape.microbatch_size);
  spec.shape = plan.shape;
  spec.plan = settled(std::move(spec.plan), plan);
  return spec;
}

Result<ClusterSpec> measured_cluster(const RunSpec& spec) {
  ClusterSpec cluster = cluster_of(spec);
  const auto measured = measure_devices(spec, [](DeviceId) { return true; });
  if (!measured) return measured.error();
  for (const auto& [device, by_size] : *measured)
    set_measured(cluster.devices[device], by_size, spec.shape.microbatch_size);
  return cluster;
}

Result<PlannedRun> plan_training(const RunSpec& spec) {
  TROUPE_TRY(check_fits(spec));
  auto cluster = measured_cluster(spec);
  if (!cluster) return cluster.error();
  auto plan = plan_on(spec, *cluster);
  if (!plan) return plan.error();
  RunSpec known = spec;
  known.cluster = std::move(*cluster);
  PlannedRun planned;
  planned.cluster = settled(std::move(known), *plan).cluster;
  planned.plan = std::move(*plan);
  planned.plan.epoch = PlanEpoch{1};
  return planned;
}

}  // namespace troupe
