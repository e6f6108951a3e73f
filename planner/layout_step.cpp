#include "planner/layout_step.h"

#include <algorithm>

#include "planner/architecture_terms.h"
#include "planner/result.h"
#include "planner/schedules.h"

namespace troupe {
namespace {

/// Blocks of each stage: as many on each, the rest one by one on the last. Stages beyond the number
/// of blocks have an end alone.
std::vector<std::uint32_t> blocks_by_stage(std::uint32_t blocks, std::uint32_t stages) {
  std::vector<std::uint32_t> out(stages, blocks / stages);
  if (stages <= blocks) {
    for (std::uint32_t more = blocks % stages; more > 0; --more) ++out[stages - more];
    return out;
  }
  out.assign(stages, 1);
  out.front() = 0;
  if (stages == blocks + 2) out.back() = 0;
  return out;
}

std::vector<StagePlan> stages_of(const ArchitectureRun& run, const Layout& layout) {
  const auto devices = static_cast<std::uint32_t>(layout.pipeline);
  const auto counts =
      blocks_by_stage(run.model.blocks, devices * static_cast<std::uint32_t>(layout.chunks));
  std::vector<StagePlan> out;
  std::uint32_t next = 0;
  for (std::uint32_t s = 0; s < counts.size(); ++s) {
    std::uint32_t last = next + counts[s];
    if (s == 0) ++last;                  // the embedding
    if (s + 1 == counts.size()) ++last;  // the head
    out.push_back({{next, last}, DeviceId{s % devices}});
    next = last;
  }
  EXPECTS(next == run.model.blocks + 2);
  return out;
}

Schedule schedule_of(const Layout& layout, ScheduleKind kind) {
  StageMap map = looped_stages(static_cast<std::uint32_t>(layout.pipeline),
                               static_cast<std::uint32_t>(layout.microbatches()),
                               static_cast<std::uint32_t>(layout.chunks));
  // Frameworks allocate what they receive: nothing waits for a buffer.
  map.transfer_slots = std::max(map.transfer_slots, map.microbatch_count);
  auto schedule = make_schedule(kind, map);
  EXPECTS(schedule.ok());
  return std::move(*schedule);
}

/// Forward and backward of one microbatch through these layers.
BlockSeconds seconds_of(const ArchitectureRun& run,
                        LayerRange layers,
                        const std::vector<BlockSeconds>& blocks,
                        const EndSeconds& ends) {
  BlockSeconds out;
  for (std::uint32_t layer = layers.first; layer < layers.last; ++layer) {
    if (layer == 0 || layer == run.model.blocks + 1) continue;
    out.forward += blocks[layer - 1].forward;
    out.backward += blocks[layer - 1].backward;
  }
  if (layers.holds(0)) {
    out.forward += ends.forward_of_input();
    out.backward += ends.input - ends.forward_of_input();
  }
  if (layers.holds(run.model.blocks + 1)) {
    out.forward += ends.forward_of_output();
    out.backward += ends.output - ends.forward_of_output();
  }
  return out;
}

/// By stage. A framework that balances its stages divides everything evenly, ends and all.
std::vector<BlockSeconds> stage_seconds_of(const ArchitectureRun& run,
                                           const std::vector<StagePlan>& stages,
                                           const Layout& layout,
                                           const Framework& framework,
                                           const TrainingCluster& cluster) {
  const EndSeconds ends = end_seconds(run, layout, framework, cluster);
  const auto blocks = all_block_seconds(run, layout, framework, cluster);
  std::vector<BlockSeconds> out;
  out.reserve(stages.size());
  for (const StagePlan& stage : stages) out.push_back(seconds_of(run, stage.layers, blocks, ends));
  if (!framework.balanced_stages) return out;
  BlockSeconds part = seconds_of(run, {0, run.model.blocks + 2}, blocks, ends);
  part.forward /= real(stages.size());
  part.backward /= real(stages.size());
  return std::vector<BlockSeconds>(stages.size(), part);
}

/// What a device holds of all its stages.
std::vector<RankParameters> held_parameters(const ArchitectureRun& run,
                                            const Layout& layout,
                                            const std::vector<StagePlan>& stages) {
  std::vector<RankParameters> out(layout.pipeline);
  for (const StagePlan& stage : stages) {
    const RankParameters more = rank_layers(run, layout, stage.layers);
    out[stage.device.index()].dense += more.dense;
    out[stage.device.index()].experts += more.experts;
  }
  return out;
}

void add_link(LayoutStep& step,
              const ArchitectureRun& run,
              const Layout& layout,
              const Interconnect& net) {
  step.boundary = boundary_bytes(run, layout);
  step.link.latency = boundary_seconds(0, layout, net);
  step.link.bandwidth =
      step.boundary / (boundary_seconds(step.boundary, layout, net) - step.link.latency);
}

/// N and U, shared out among the stages of a device.
void add_step_ends(LayoutStep& step,
                   const Layout& layout,
                   const Framework& framework,
                   const TrainingCluster& cluster,
                   const std::vector<RankParameters>& held) {
  for (std::size_t s = 0; s < step.stages.size(); ++s) {
    const std::size_t device = step.stages[s].device.index();
    BlockSeconds microbatch;
    for (std::size_t other = device; other < step.stages.size(); other += layout.pipeline) {
      microbatch.forward += step.costs.stages[other].forward;
      microbatch.backward += step.costs.stages[other].backward_input;
    }
    const double part = 1 / real(layout.chunks);
    LayerSeconds& costs = step.costs.stages[s];
    costs.norm = part * reduction_seconds(layout, framework, cluster.net, held[device], microbatch);
    costs.update = part * optimizer_seconds(held[device], layout, framework, cluster.device);
  }
}

void add_bytes(LayoutStep& step,
               const ArchitectureRun& run,
               const Layout& layout,
               const Framework& framework,
               const std::vector<RankParameters>& held) {
  const double kept = block_kept_bytes(run, layout, framework, run.model.blocks - 1);
  const auto in_flight = in_flight_per_stage(step.schedule);
  std::vector<double> blocks(layout.pipeline);
  for (std::size_t s = 0; s < step.stages.size(); ++s) {
    const LayerRange& layers = step.stages[s].layers;
    const std::uint32_t ends =
        (layers.holds(0) ? 1 : 0) + (layers.holds(run.model.blocks + 1) ? 1 : 0);
    const double count = layers.size() - ends;
    step.kept.push_back(count * kept);
    blocks[step.stages[s].device.index()] += count * in_flight[s];
  }
  for (std::size_t d = 0; d < held.size(); ++d) {
    HeldLayers one{held[d], blocks[d], std::nullopt};
    if (d + 1 == held.size()) one.at_loss = blocks[d];
    step.bytes.push_back(held_bytes(run, layout, framework, one));
  }
}

/// Sharded layers: the closed form is a simulation of its own, layer by layer; a microbatch takes
/// its part of it.
void take_sharded(LayoutStep& step,
                  const ArchitectureRun& run,
                  const Layout& layout,
                  const Framework& framework,
                  const TrainingCluster& cluster) {
  const StepSeconds whole = step_seconds(run, layout, framework, cluster);
  LayerSeconds& costs = step.costs.stages.front();
  const Seconds each = (whole.total() - whole.optimizer) / real(layout.microbatches());
  const double forward = costs.forward / (costs.forward + costs.backward_input);
  costs = {each * forward, each * (1 - forward), 0, 0, whole.optimizer};
  step.notes.push_back(
      "F and B hold the gathering of layers and the scattering of gradients that nothing hides: " +
      format_seconds(whole.reduction) + " of the step");
}

}  // namespace

std::uint64_t action_count(const Layout& layout) {
  return 4 * layout.pipeline * layout.chunks * (layout.microbatches() + 1);
}

LayoutStep layout_step(const ArchitectureRun& run,
                       const Layout& layout,
                       const Framework& framework,
                       const TrainingCluster& cluster) {
  EXPECTS(layout_faults(run, layout).empty());
  LayoutStep step;
  step.kind = layout.chunks > 1 ? ScheduleKind::interleaved : ScheduleKind::one_f_one_b;
  step.stages = stages_of(run, layout);
  step.schedule = schedule_of(layout, step.kind);
  const std::size_t count = step.stages.size();
  step.costs.overhead.resize(count);
  for (auto* transfers :
       {&step.costs.transfer_forward, &step.costs.transfer_backward, &step.costs.transfer_tied})
    transfers->resize(count);
  for (const BlockSeconds& one : stage_seconds_of(run, step.stages, layout, framework, cluster))
    step.costs.stages.push_back({one.forward, one.backward, 0, 0, 0});
  if (layout.pipeline > 1) {
    add_link(step, run, layout, cluster.net);
    const Seconds one = boundary_seconds(step.boundary, layout, cluster.net);
    for (std::size_t s = 0; s < count; ++s) {
      if (s + 1 < count) step.costs.transfer_forward[s] = one;
      if (s > 0) step.costs.transfer_backward[s] = one;
    }
  }
  const auto held = held_parameters(run, layout, step.stages);
  if (gathers_layers(layout, framework)) {
    take_sharded(step, run, layout, framework, cluster);
  } else {
    add_step_ends(step, layout, framework, cluster, held);
    step.notes.push_back("N reduces gradients between replicas, U is the optimizer's step");
  }
  add_bytes(step, run, layout, framework, held);
  return step;
}

}  // namespace troupe
