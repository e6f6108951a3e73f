#include "apps/joint_tables.h"

#include <fmt/format.h>

#include "apps/plan_tables.h"
#include "planner/automatic.h"
#include "planner/counted.h"
#include "planner/printable.h"
#include "planner/step_costs.h"

namespace troupe {
namespace {

TableCell count_cell(std::uint64_t count) {
  return {fmt::format("{}", count), count};
}

TableCell seconds_cell(Seconds seconds) {
  return {seconds == 0 ? "-" : format_seconds(seconds), seconds};
}

template <class Visit>
void each_stage(const JointPlan& plan, const Visit& visit) {
  for (std::size_t r = 0; r < plan.replicas.size(); ++r)
    for (std::size_t s = 0; s < plan.replicas[r].pipeline.stages.size(); ++s)
      visit(r, plan.replicas[r], s);
}

std::string_view tier_name(StateTier tier) {
  if (tier == StateTier::device) return "device";
  return tier == StateTier::host ? "host" : "disk";
}

nlohmann::json choices_json(const StageChoices& choices) {
  return {
      {"recompute", {{"full", choices.recompute.full}, {"selective", choices.recompute.selective}}},
      {"weights", tier_name(choices.weights)},
      {"gradients", tier_name(choices.gradients)},
      {"optimizer", tier_name(choices.optimizer)},
      {"activations", tier_name(choices.activations)},
      {"host_updates", choices.host_update}};
}

}  // namespace

Table joint_stage_table(const JointPlan& plan, const ClusterSpec& cluster) {
  Table table({{"replica", "replica", true},
               {"microbatches", "microbatches", true},
               {"stage", "stage", true},
               {"device", "device", false},
               {"layers", "layers", false},
               {"forward", "forward_seconds", true},
               {"backward", "backward_seconds", true},
               {"update", "update_seconds", true},
               {"waits a step", "wait_seconds", true},
               {"beside", "choices", false}});
  each_stage(plan, [&](std::size_t r, const JointReplica& replica, std::size_t s) {
    const StagePoint& point = replica.pipeline.points[s];
    const StagePlan& stage = replica.pipeline.stages[s];
    const std::string& device = cluster.devices.at(stage.device.index()).name;
    const std::string layers = layers_text(stage.layers);
    const std::string choices = to_text(point.choices);
    table.add({count_cell(r),
               count_cell(replica.microbatches),
               count_cell(s),
               {device, device},
               {layers, {{"first", stage.layers.first}, {"last", stage.layers.last}}},
               seconds_cell(point.seconds.forward),
               seconds_cell(point.seconds.backward_input + point.seconds.backward_weight),
               seconds_cell(point.seconds.update),
               seconds_cell(step_sum(point.waits, replica.microbatches)),
               {choices.empty() ? "-" : choices, choices_json(point.choices)}});
  });
  return table;
}

Table joint_memory_table(const JointPlan& plan, const ClusterSpec& cluster) {
  Table table({{"device", "device", false},
               {"weights", "weights", true},
               {"gradients", "gradients", true},
               {"optimizer", "optimizer", true},
               {"activations", "activations", true},
               {"workspace", "workspace", true},
               {"transfer", "transfer", true},
               {"peak", "peak", true},
               {"of", "memory", true},
               {"in host memory", "host", true},
               {"on disk", "disk", true}});
  each_stage(plan, [&](std::size_t, const JointReplica& replica, std::size_t s) {
    const StagePoint& point = replica.pipeline.points[s];
    const DeviceSpec& device = cluster.devices.at(replica.pipeline.stages[s].device.index());
    const MemoryPlan& memory = point.memory;
    table.add({{device.name, device.name},
               bytes_cell(memory.weights),
               bytes_cell(memory.gradients),
               bytes_cell(memory.optimizer),
               bytes_cell(memory.activations),
               bytes_cell(memory.workspace),
               bytes_cell(memory.transfer),
               bytes_cell(memory.total()),
               bytes_cell(device.memory),
               bytes_cell(point.host),
               bytes_cell(point.disk)});
  });
  return table;
}

std::string joint_text(const JointPlan& plan, const ClusterSpec& cluster) {
  std::string text =
      fmt::format("schedule 1f1b, {} of {}, predicted step {}",
                  counted(plan.shape.microbatch_count, "microbatch"),
                  counted(plan.shape.microbatch_size, "sequence"), format_seconds(plan.step));
  if (plan.exchange > 0)
    text += fmt::format(", of which {} exchange of gradients", format_seconds(plan.exchange));
  text += '\n';
  if (!plan.trains()) text += "priced, does not train yet: " + untrained_text(plan, cluster) + '\n';
  text += fmt::format("search: {} of the devices into replicas, {}",
                      counted(plan.groupings, "division"),
                      plan.exact ? "the optimum" : "the best of a heuristic");
  if (plan.runner_up > 0)
    text += fmt::format("; next in {} ({:+.1f} %)", format_seconds(plan.runner_up),
                        100 * (plan.runner_up / plan.step - 1));
  return text + "\n\n" + joint_stage_table(plan, cluster).to_text() + '\n' +
         joint_memory_table(plan, cluster).to_text();
}

nlohmann::json joint_json(const JointPlan& plan, const ClusterSpec& cluster) {
  return {
      {"step_seconds", plan.step},
      {"exchange_seconds", plan.exchange},
      {"trains", plan.trains()},
      {"microbatches", plan.shape.microbatch_count},
      {"microbatch_size", plan.shape.microbatch_size},
      {"groupings", plan.groupings},
      {"exact", plan.exact},
      {"runner_up_seconds", plan.runner_up > 0 ? nlohmann::json(plan.runner_up) : nlohmann::json()},
      {"stages", joint_stage_table(plan, cluster).to_json()},
      {"memory", joint_memory_table(plan, cluster).to_json()}};
}

}  // namespace troupe
