#include "apps/strategy_tables.h"
#include "planner/counted.h"

#include <fmt/format.h>

#include <algorithm>

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

std::string choice_text(const StepChoice& choice) {
  return fmt::format("{} of {}, schedule {}{}{}",
                     counted(choice.shape.microbatch_count, "microbatch"),
                     choice.shape.microbatch_size, to_string(choice.schedule),
                     choice.chunks > 1 ? fmt::format(" with {} chunks", choice.chunks) : "",
                     choice.recompute ? ", activations computed again" : "");
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
               {"refused because", "refused", false}});
  Seconds best = 0;
  for (const StrategyOutcome& one : outcomes)
    if (!one.refused && (best == 0 || one.step < best)) best = one.step;
  for (const StrategyOutcome& one : outcomes) {
    const std::string name(to_string(one.strategy));
    if (one.refused) {
      const TableCell none{"-", nullptr};
      const std::string reason = short_reason(*one.refused);
      table.add({{name, name}, none, none, none, none, none, none, none, none, {reason, reason}});
      continue;
    }
    const std::string& slowest = cluster.devices.at(one.slowest.index()).name;
    const std::size_t replicas =
        one.workers ? static_cast<std::size_t>(std::count_if(
                          one.workers->workers.begin(), one.workers->workers.end(),
                          [](const VirtualWorker& worker) { return worker.share > 0; }))
                    : 1;
    table.add({{name, name},
               {format_seconds(one.step), one.step},
               {fmt::format("{:+.1f} %", 100 * (one.step / best - 1)), one.step / best - 1},
               {slowest, slowest},
               share_cell(one.slowest_busy / one.step),
               share_cell(one.bubble),
               share_cell(one.memory_share),
               {fmt::format("{}", one.devices_used), one.devices_used},
               {fmt::format("{}", replicas), replicas},
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

nlohmann::json choices_json(const std::vector<StepChoice>& choices) {
  nlohmann::json list = nlohmann::json::array();
  for (const StepChoice& one : choices)
    list.push_back({{"microbatches", one.shape.microbatch_count},
                    {"microbatch_size", one.shape.microbatch_size},
                    {"schedule", to_string(one.schedule)},
                    {"chunks", one.chunks},
                    {"trains", !one.recompute},
                    {"recompute", one.recompute},
                    {"step_seconds", one.step ? nlohmann::json(*one.step) : nlohmann::json()}});
  return list;
}

std::string choices_text(const std::vector<StepChoice>& choices, Seconds step) {
  if (choices.empty() || !choices.front().step) return "";
  std::string text = fmt::format(
      "left open (\"auto\" for training.microbatches and plan.schedule takes what trains); "
      "quickest: {}: {}\n",
      choice_text(choices.front()), change_text(*choices.front().step, step));
  if (!choices.front().recompute) return text;
  text += "layers do not compute activations again yet: this is a price alone\n";
  for (const StepChoice& one : choices)
    if (!one.recompute && one.step) {
      text += fmt::format("quickest that trains: {}: {}\n", choice_text(one),
                          change_text(*one.step, step));
      break;
    }
  return text;
}

}  // namespace troupe
