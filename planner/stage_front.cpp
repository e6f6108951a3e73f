#include "planner/stage_front.h"

#include <algorithm>

#include "planner/pipeline_fill.h"
#include "planner/pipeline_time.h"
#include "planner/step_choices.h"
#include "planner/step_costs.h"

namespace troupe {

StageFront::StageFront(const ModelSpec& model,
                       const ClusterSpec& cluster,
                       const ModelProfile& profile,
                       DType compute)
    : blocks_(model.blocks) {
  const LayerProfile again = recomputed(profile.block);
  saved_ = profile.block.saved_bytes - again.saved_bytes;
  const Bytes of_block =
      std::max({profile.block.forward_workspace_bytes, profile.block.backward_workspace_bytes,
                profile.block.update_workspace_bytes});
  extra_ = again.backward_workspace_bytes - std::min(again.backward_workspace_bytes, of_block);
  for (const DeviceSpec& device : cluster.devices)
    seconds_.push_back(layer_seconds(device, profile.block, compute).forward);
}

std::optional<std::uint32_t> StageFront::fewest(Bytes bytes,
                                                Bytes room,
                                                std::uint32_t in_flight,
                                                std::uint32_t first,
                                                std::uint32_t last) const {
  if (bytes <= room) return 0;
  const Bytes each = in_flight * saved_;
  if (each == 0) return std::nullopt;
  const Bytes needed = (bytes + extra_ - room + each - 1) / each;
  const std::uint32_t blocks = std::min(last, blocks_ + 1) - std::max(first, 1u);
  if (std::min(last, blocks_ + 1) <= std::max(first, 1u) || needed > blocks) return std::nullopt;
  return static_cast<std::uint32_t>(needed);
}

std::optional<RecomputedPipeline> recomputed_pipeline(const ModelSpec& model,
                                                      const ClusterSpec& cluster,
                                                      const ModelProfile& profile,
                                                      const PlanOptions& options) {
  constexpr std::size_t most = 24;
  PlanOptions fused = options;
  fused.schedule = ScheduleKind::one_f_one_b;
  const Pricer pricer(model, cluster, profile, fused);
  const StageFront front(model, cluster, profile, fused.shape.compute);
  std::optional<RecomputedPipeline> best;
  for (const FilledPipeline& filled :
       filled_pipelines(pricer, cluster, fused, model.tied, most, &front)) {
    const Candidate& candidate = filled.candidate;
    const std::uint32_t stages = candidate.stage_count();
    const auto edges = pricer.edge_bytes_of(candidate.order);
    StepCosts costs = pricer.costs_of(candidate);
    RecomputedPipeline made{pricer.stages_of(candidate), {}, 0};
    for (std::uint32_t s = 0; s < stages; ++s) {
      const std::uint32_t flight = std::min(stages - s, fused.shape.microbatch_count);
      const std::uint32_t first = candidate.cuts[s];
      const std::uint32_t last = candidate.cuts[s + 1];
      const auto again =
          front.fewest(pricer.bytes_in_flight(flight, first, last) + edges[s],
                       cluster.devices[candidate.order[s]].memory, flight, first, last);
      if (!again) break;
      made.again.push_back(*again);
      costs.stages[s].backward_input += *again * front.seconds(candidate.order[s]);
    }
    if (made.again.size() < stages) continue;
    made.step =
        one_f_one_b_seconds(costs, fused.shape.microbatch_count, fused.transfer_slots, model.tied);
    if (!best || made.step < best->step) best = std::move(made);
  }
  return best;
}

}  // namespace troupe
