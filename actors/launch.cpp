#include "actors/launch.h"

#include <fmt/format.h>

#include <algorithm>

#include "actors/measure.h"
#include "actors/run_session.h"
#include "actors/system_config.h"
#include "kernels/stage.h"

namespace troupe {

std::string build_text() {
  return fmt::format("0.1.0 (protocol {})", protocol_version);
}

Result<RunOutcome> run_training(const RunSpec& spec,
                                const RunCallbacks& callbacks,
                                const RunOptions& options) {
  const bool remote = std::any_of(spec.cluster.nodes.begin(), spec.cluster.nodes.end(),
                                  [](const NodeSpec& node) { return node.own_process; });
  SystemConfig config(3, remote);
  caf::actor_system system(config);
  RunSession session(system, spec, callbacks, options);
  return session.run();
}

Result<PlannedRun> plan_training(const RunSpec& spec) {
  PlannedRun planned;
  planned.cluster = spec.cluster;
  planned.cluster.copy_between_devices |= spec.copy_between_devices;
  const auto measured = measure_devices(spec, [](DeviceId) { return true; });
  if (!measured) return measured.error();
  for (const auto& [device, kinds] : *measured) planned.cluster.devices[device].measured = kinds;
  PlanOptions options = spec.plan;
  options.shape = spec.shape;
  auto plan =
      make_plan(spec.model, planned.cluster, profile_model(spec.model, spec.shape), options);
  if (!plan) return plan.error();
  planned.plan = std::move(*plan);
  planned.plan.epoch = PlanEpoch{1};
  return planned;
}

}  // namespace troupe
