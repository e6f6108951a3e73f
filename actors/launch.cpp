#include "actors/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

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
  std::map<std::uint32_t, std::map<LayerKind, LayerSeconds>> by_threads;
  for (DeviceSpec& device : planned.cluster.devices) {
    if (device.kind != DeviceKind::cpu || !device.measured.empty()) continue;
    auto known = by_threads.find(device.threads);
    if (known == by_threads.end()) {
      auto measured = measure_layers(device, spec.model, spec.shape);
      if (!measured) return measured.error();
      known = by_threads.emplace(device.threads, std::move(*measured)).first;
    }
    device.measured = known->second;
  }
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
