#include "apps/strategy_tables.h"
#include "planner/automatic.h"
#include "planner/counted.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace troupe {
namespace {

/// The refusal up to its remedy, without "plan: ".
std::string short_reason(const Error& error) {
  std::string text = error.text;
  if (text.rfind("plan: ", 0) == 0) text.erase(0, 6);
  return text;
}

std::string change_text(Seconds step, Seconds before) {
  return fmt::format("{} ({:+.1f} %)", format_seconds(step),
                     100 * (step / std::max(before, 1e-300) - 1));
}

const char* role_of(const ExpertDevice& device) {
  if (!device.used()) return "idle";
  if (!device.holds_experts()) return "attention";
  return device.sequences > 0 ? "attention, experts" : "experts";
}

/// "22", or "3-4" where layers have unlike numbers.
std::string experts_text(const std::vector<std::uint32_t>& by_layer) {
  const auto [least, most] = std::minmax_element(by_layer.begin(), by_layer.end());
  return *least == *most ? fmt::format("{}", *most) : fmt::format("{}-{}", *least, *most);
}

std::string choice_text(const StepChoice& choice) {
  return fmt::format("{} of {}, schedule {}{}{}",
                     counted(choice.shape.microbatch_count, "microbatch"),
                     choice.shape.microbatch_size, to_string(choice.schedule),
                     choice.chunks > 1 ? fmt::format(" with {} chunks", choice.chunks) : "",
                     choice.recompute ? ", activations computed again" : "");
}

std::size_t replicas_of(const StrategyOutcome& outcome) {
  if (outcome.joint) return outcome.joint->replicas.size();
  if (!outcome.workers) return 1;
  const auto& all = outcome.workers->workers;
  return static_cast<std::size_t>(std::count_if(
      all.begin(), all.end(), [](const VirtualWorker& worker) { return worker.share > 0; }));
}

/// "2 replicas", "t4: optimizer in host memory".
std::string way_of(const StrategyOutcome& outcome, const ClusterSpec& cluster) {
  if (outcome.plan)
    return fmt::format("one pipeline, schedule {}", to_string(outcome.plan->schedule_kind));
  if (outcome.experts) return outcome.experts->zebra ? "as zebra does" : "as expert-parallel does";
  if (!outcome.joint) return counted(replicas_of(outcome), "replica");
  const std::string text = untrained_text(*outcome.joint, cluster);
  const std::string shape =
      fmt::format("{} of {}", counted(outcome.joint->shape.microbatch_count, "microbatch"),
                  outcome.joint->shape.microbatch_size);
  return shape + (text.empty() ? ", one pipeline" : ", " + text);
}

}  // namespace

Table strategy_table(const std::vector<StrategyOutcome>& outcomes, const ClusterSpec& cluster) {
  Table table({{"strategy", "strategy", false},
               {"step", "step_seconds", true},
               {"against best", "against_best", true},
               {"slowest device", "slowest_device", false},
               {"busy", "slowest_busy_share", true},
               {"bubble", "bubble", true},
               {"memory", "peak_memory_share", true},
               {"devices", "devices_used", true},
               {"replicas", "replicas", true},
               {"trains", "trains", false},
               {"refused because", "refused", false}});
  Seconds best = 0;
  for (const StrategyOutcome& one : outcomes)
    if (!one.refused && (best == 0 || one.step < best)) best = one.step;
  for (const StrategyOutcome& one : outcomes) {
    const std::string name(to_string(one.strategy));
    if (one.refused) {
      const TableCell none{"-", nullptr};
      const std::string reason = short_reason(*one.refused);
      table.add(
          {{name, name}, none, none, none, none, none, none, none, none, none, {reason, reason}});
      continue;
    }
    const std::string& slowest = cluster.devices.at(one.slowest.index()).name;
    const std::size_t replicas = replicas_of(one);
    const bool trains = one.plan.has_value();
    table.add({{name, name},
               {format_seconds(one.step), one.step},
               {fmt::format("{:+.1f} %", 100 * (one.step / best - 1)), one.step / best - 1},
               {slowest, slowest},
               share_cell(one.slowest_busy / one.step),
               share_cell(one.bubble),
               share_cell(one.memory_share),
               {fmt::format("{}", one.devices_used), one.devices_used},
               {fmt::format("{}", replicas), replicas},
               {trains ? "yes" : "no", trains},
               {"", nullptr}});
  }
  return table;
}

Table worker_table(const WorkerPlan& workers, const ClusterSpec& cluster) {
  Table table({{"worker", "worker", true},
               {"microbatches", "microbatches", true},
               {"each", "period_seconds", true},
               {"in flight", "in_flight", true},
               {"stages (device x layers)", "stages", false}});
  for (std::size_t w = 0; w < workers.workers.size(); ++w) {
    const VirtualWorker& worker = workers.workers[w];
    std::string stages;
    nlohmann::json list = nlohmann::json::array();
    for (const WorkerStage& stage : worker.stages) {
      const std::string& device = cluster.devices.at(stage.device).name;
      stages +=
          fmt::format("{}{} x{}", stages.empty() ? "" : ", ", device, stage.last - stage.first);
      list.push_back({{"device", device}, {"first", stage.first}, {"last", stage.last}});
    }
    table.add({{fmt::format("{}", w), w},
               {fmt::format("{}", worker.share), worker.share},
               {format_seconds(worker.period()), worker.period()},
               {fmt::format("{}", worker.in_flight), worker.in_flight},
               {stages, list}});
  }
  return table;
}

Table expert_table(const ExpertPlan& plan, const ClusterSpec& cluster) {
  Table table({{"device", "device", false},
               {"does", "role", false},
               {"share of tokens", "token_share", true},
               {"experts a layer", "experts_by_layer", true},
               {"busy", "busy_seconds", true},
               {"memory", "peak_bytes", true},
               {"cap", "memory_bytes", true},
               {"full", "peak_memory_share", true}});
  for (std::size_t d = 0; d < plan.devices.size(); ++d) {
    const ExpertDevice& one = plan.devices[d];
    const DeviceSpec& device = cluster.devices.at(d);
    table.add({{device.name, device.name},
               {role_of(one), role_of(one)},
               share_cell(one.share),
               {experts_text(one.experts), one.experts},
               {format_seconds(one.busy), one.busy},
               {format_bytes(one.bytes), one.bytes},
               {format_bytes(device.memory), device.memory},
               share_cell(static_cast<double>(one.bytes) / static_cast<double>(device.memory))});
  }
  return table;
}

std::string expert_text(const ExpertPlan& plan) {
  std::string text =
      fmt::format("{} of {}", counted(plan.rounds, "round"), counted(plan.round, "sequence"));
  if (plan.zebra) {
    text += plan.passes > 1 ? fmt::format(" in {}", counted(plan.passes, "part"))
                            : ", all in flight at once";
    const auto moved = std::accumulate(plan.moves.begin(), plan.moves.end(), 0U);
    text += moved > 0 ? fmt::format("; attention devices take experts over: {} in {}",
                                    counted(moved, "chunk"), counted(plan.moves.size(), "layer"))
                      : "; no experts move to attention devices";
  }
  return text + fmt::format(
                    "\nan exchange of tokens takes {}; once a step: dense gradients {}, norm "
                    "and optimizer {}\n",
                    format_seconds(plan.exchange), format_seconds(plan.reduce),
                    format_seconds(plan.update));
}

nlohmann::json expert_json(const ExpertPlan& plan, const ClusterSpec& cluster) {
  return {{"zebra", plan.zebra},
          {"sequences_of_round", plan.round},
          {"rounds", plan.rounds},
          {"passes", plan.passes},
          {"moved_chunks_by_layer", plan.moves},
          {"exchange_seconds", plan.exchange},
          {"reduce_seconds", plan.reduce},
          {"update_seconds", plan.update},
          {"devices", expert_table(plan, cluster).to_json()}};
}

std::string reasons_text(const PlanReasons& reasons, Seconds step, const ClusterSpec& cluster) {
  std::string text = fmt::format(
      "binds: {} ({} is busy for {:.1f} % of the step, {} is {:.1f} % full)\n",
      reasons.memory_binds
          ? fmt::format("memory of {}", cluster.devices.at(reasons.fullest.index()).name)
          : fmt::format("compute of {}", cluster.devices.at(reasons.busiest.index()).name),
      cluster.devices.at(reasons.busiest.index()).name, 100 * reasons.busy / step,
      cluster.devices.at(reasons.fullest.index()).name, 100 * reasons.share);
  for (const PlanChange& one : reasons.changes)
    text += fmt::format("with {}: {}\n", one.change,
                        one.step ? change_text(*one.step, step) : "does not fit");
  return text;
}

nlohmann::json reasons_json(const PlanReasons& reasons, Seconds step, const ClusterSpec& cluster) {
  nlohmann::json list = nlohmann::json::array();
  for (const PlanChange& one : reasons.changes)
    list.push_back(
        {{"change", one.change},
         {"step_seconds", one.step ? nlohmann::json(*one.step) : nlohmann::json()},
         {"against_plan", one.step ? nlohmann::json(*one.step / step - 1) : nlohmann::json()}});
  return {{"binds", reasons.memory_binds ? "memory" : "compute"},
          {"busiest_device", cluster.devices.at(reasons.busiest.index()).name},
          {"busiest_busy_seconds", reasons.busy},
          {"fullest_device", cluster.devices.at(reasons.fullest.index()).name},
          {"fullest_share", reasons.share},
          {"changes", list}};
}

std::string automatic_text(const StrategyOutcome& outcome,
                           Seconds step,
                           const ClusterSpec& cluster) {
  if (outcome.refused || outcome.plan) return "";
  return fmt::format("with what is priced and does not train yet: {}: {} (--strategy auto)\n",
                     way_of(outcome, cluster), change_text(outcome.step, step));
}

nlohmann::json automatic_json(const StrategyOutcome& outcome, const ClusterSpec& cluster) {
  if (outcome.refused) return nullptr;
  return {{"step_seconds", outcome.step},
          {"trains", outcome.plan.has_value()},
          {"what", way_of(outcome, cluster)}};
}

std::string automatic_line(const std::vector<StrategyOutcome>& outcomes,
                           const ClusterSpec& cluster) {
  for (const StrategyOutcome& one : outcomes)
    if (one.strategy == Strategy::automatic && !one.refused)
      return fmt::format("auto: {}\n", way_of(one, cluster));
  return "";
}

nlohmann::json choices_json(const std::vector<StepChoice>& choices) {
  nlohmann::json list = nlohmann::json::array();
  for (const StepChoice& one : choices)
    list.push_back({{"microbatches", one.shape.microbatch_count},
                    {"microbatch_size", one.shape.microbatch_size},
                    {"schedule", to_string(one.schedule)},
                    {"chunks", one.chunks},
                    {"recompute", one.recompute},
                    {"step_seconds", one.step ? nlohmann::json(*one.step) : nlohmann::json()}});
  return list;
}

std::string choices_text(const std::vector<StepChoice>& choices, Seconds step) {
  if (choices.empty() || !choices.front().step) return "";
  return fmt::format(
      "left open (\"auto\" for training.microbatches, plan.schedule and plan.recompute takes it); "
      "quickest: {}: {}\n",
      choice_text(choices.front()), change_text(*choices.front().step, step));
}

}  // namespace troupe
