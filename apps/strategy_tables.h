/// Strategies side by side, replicas, and the reasons of a plan, as `troupe plan` prints them.
#pragma once

#include <string>
#include <vector>

#include "apps/table.h"
#include "planner/plan_changes.h"
#include "planner/step_choices.h"
#include "planner/strategies.h"

namespace troupe {

/// One row a strategy: step, slowest device, bubble, memory, or why it is refused.
Table strategy_table(const std::vector<StrategyOutcome>& outcomes, const ClusterSpec& cluster);
/// One row a virtual worker: its share, pace and stages.
Table worker_table(const WorkerPlan& workers, const ClusterSpec& cluster);
/// One row a device: what it does, its share of the tokens, its experts of each layer, its memory.
Table expert_table(const ExpertPlan& plan, const ClusterSpec& cluster);
/// How a step goes, in a line or two, without the step's time.
std::string expert_text(const ExpertPlan& plan);
/// The same, and the table, as JSON.
nlohmann::json expert_json(const ExpertPlan& plan, const ClusterSpec& cluster);
/// What binds, and what changes would buy.
std::string reasons_text(const PlanReasons& reasons, Seconds step, const ClusterSpec& cluster);
nlohmann::json reasons_json(const PlanReasons& reasons, Seconds step, const ClusterSpec& cluster);
/// What everything that can be priced would buy beside a step that trains: one line, empty where it
/// buys nothing.
std::string automatic_text(const StrategyOutcome& outcome,
                           Seconds step,
                           const ClusterSpec& cluster);
nlohmann::json automatic_json(const StrategyOutcome& outcome, const ClusterSpec& cluster);
/// What `auto` does, below a table that it is in.
std::string automatic_line(const std::vector<StrategyOutcome>& outcomes,
                           const ClusterSpec& cluster);
/// What would be chosen of what the configuration leaves open, beside the step as it is.
std::string choices_text(const std::vector<StepChoice>& choices, Seconds step);
/// All of them, the quickest first.
nlohmann::json choices_json(const std::vector<StepChoice>& choices);

}  // namespace troupe
