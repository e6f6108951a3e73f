#include "apps/layout_case.h"

#include <fmt/format.h>

#include <cmath>

#include "apps/estimate_table.h"
#include "planner/layout_step.h"
#include "planner/step_costs.h"

namespace troupe {
namespace {

/// That a second or two are enough for, and some hundred MB.
constexpr std::uint64_t most_actions = 2'000'000;

ClusterSpec cluster_of(const LayoutStep& step, const Layout& layout, const DeviceGroup& group) {
  ClusterSpec out;
  out.nodes.push_back({group.name, false});
  for (std::uint64_t d = 0; d < layout.pipeline; ++d) {
    DeviceSpec device;
    device.name = fmt::format("stage{}", d);
    device.kind = DeviceKind::emulated;
    device.model = group.name;
    device.memory = static_cast<Bytes>(group.memory);
    out.devices.push_back(std::move(device));
  }
  out.same_process = step.link;
  return out;
}

MemoryPlan memory_of(const StepBytes& bytes) {
  const auto whole = [](double value) { return static_cast<Bytes>(value); };
  MemoryPlan out;
  out.weights = whole(bytes.weights);
  out.gradients = whole(bytes.gradients);
  out.optimizer = whole(bytes.optimizer);
  out.activations = whole(bytes.activations);
  out.workspace = whole(bytes.working + bytes.ends + bytes.context);
  return out;
}

/// Costs with the transfers of the links as they are changed.
StepCosts costs_with(StepCosts costs,
                     const std::vector<StagePlan>& stages,
                     const ClusterSpec& cluster,
                     double boundary) {
  const auto over = [&](std::size_t from, std::size_t to) {
    const LinkSpec link = cluster.link(stages[from].device, stages[to].device);
    return link.latency + boundary / link.bandwidth;
  };
  for (std::size_t s = 0; s + 1 < stages.size(); ++s) {
    if (stages[s].device == stages[s + 1].device) continue;
    costs.transfer_forward[s] = over(s, s + 1);
    costs.transfer_backward[s + 1] = over(s + 1, s);
  }
  return costs;
}

}  // namespace

Result<SimulationCase> layout_case(const ArchitectureRun& run,
                                   const DeviceGroup& group,
                                   const Framework& framework,
                                   const PricedLayout& priced) {
  const Layout& layout = priced.layout;
  if (action_count(layout) > most_actions)
    return Error{ErrorCode::invalid_input,
                 fmt::format("{} has {} actions a step, and at most {} are played; choose larger "
                             "microbatches (--microbatch) or fewer chunks (--chunks)",
                             layout_text(layout), action_count(layout), most_actions)};
  const LayoutStep step = layout_step(run, layout, framework, group.cluster);
  SimulationCase one;
  one.source = layout_text(layout);
  one.schedule_name = to_string(step.kind);
  one.cluster = cluster_of(step, layout, group);
  one.shape.microbatch_count = static_cast<std::uint32_t>(layout.microbatches());
  one.shape.microbatch_size = static_cast<std::uint32_t>(layout.microbatch);
  one.shape.sequence_length = static_cast<std::uint32_t>(run.sequence);
  one.shape.batch_size = static_cast<std::uint32_t>(layout.batch);
  one.shape.compute = DType::bf16;
  one.stages = step.stages;
  one.schedule = step.schedule;
  for (const StepBytes& bytes : step.bytes) one.memory.push_back(memory_of(bytes));
  one.seconds = [costs = step.costs, stages = step.stages, cluster = one.cluster,
                 boundary = step.boundary](const WhatIf& what_if) -> Result<ActionSeconds> {
    return ActionSeconds([made = costs_with(costs, stages, changed(cluster, what_if), boundary)](
                             const Action& action) { return made.of(action); });
  };
  one.notes = step.notes;
  const std::uint64_t ranks = layout.devices() / layout.pipeline;
  if (ranks > 1)
    one.notes.push_back(
        fmt::format("every stage is {} devices that do the same at the same time", ranks));
  return one;
}

std::string against_closed_form(const ArchitectureRun& run,
                                const PricedLayout& priced,
                                Seconds played) {
  const Layout& layout = priced.layout;
  const Seconds closed = priced.seconds.total();
  const double off = played / closed - 1;
  std::string text = fmt::format("played {}, {:+.1f} % against the closed form's {}",
                                 format_seconds(played), 100 * off, format_seconds(closed));
  if (std::abs(off) <= 0.01) return text;
  if (run.model.blocks % (layout.pipeline * layout.chunks) != 0)
    return text + fmt::format(", which takes all {} stages for as full as the fullest",
                              layout.pipeline * layout.chunks);
  return text + fmt::format(", in which a device does nothing else during the {} of its sends",
                            format_seconds(priced.seconds.transfer));
}

}  // namespace troupe
