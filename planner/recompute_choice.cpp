#include "planner/recompute_choice.h"

#include <algorithm>
#include <set>

#include "planner/memory.h"
#include "planner/partition.h"
#include "planner/schedules.h"
#include "planner/stage_points.h"

namespace troupe {

std::optional<std::vector<StagePlan>> recompute_by_stage(std::vector<StagePlan> stages,
                                                         const ModelSpec& model,
                                                         const ClusterSpec& cluster,
                                                         const ModelProfile& profile,
                                                         const PlanOptions& options) {
  if (options.schedule == ScheduleKind::zero_bubble_h1) return std::nullopt;
  std::set<DeviceId> devices;
  for (const StagePlan& stage : stages)
    if (!devices.insert(stage.device).second) return std::nullopt;
  const StageMap map = stage_map_of(stages, cluster, model, options);
  const auto schedule = make_schedule(options.schedule, map);
  if (!schedule) return std::nullopt;
  const auto flights = in_flight_per_stage(*schedule);
  const StagePoints points(model, cluster, profile, options.shape.compute, {true, false});
  for (std::uint32_t s = 0; s < stages.size(); ++s) {
    const Bytes edges = edge_bytes(edge_buffers(StageId{s}, map, cluster), model, profile);
    const auto point = points.quickest(stages[s].device, stages[s].layers, flights.at(s), edges,
                                       options.shape.microbatch_count);
    if (!point) return std::nullopt;
    stages[s].recompute = point->choices.recompute;
  }
  return stages;
}

bool computes_again(const std::vector<StagePlan>& stages) {
  return std::any_of(stages.begin(), stages.end(),
                     [](const StagePlan& stage) { return !stage.recompute.none(); });
}

std::optional<Recompute> common_policy(const std::vector<StagePlan>& stages,
                                       const ModelSpec& model) {
  for (const Recompute policy : {Recompute::none, Recompute::selective, Recompute::full})
    if (std::all_of(stages.begin(), stages.end(), [&](const StagePlan& stage) {
          return stage.recompute == recompute_all(model, stage.layers, policy);
        }))
      return policy;
  return std::nullopt;
}

}  // namespace troupe
