#include "planner/automatic.h"

#include <fmt/format.h>

#include <algorithm>

#include "planner/counted.h"
#include "planner/plan_choice.h"
#include "planner/step_costs.h"

namespace troupe {
namespace {

/// Relative difference of step times below which the plan that trains wins.
constexpr double same_time = 1e-9;

/// The strategies whose plans neither the planner's search nor joint_plan holds.
constexpr Strategy others[] = {Strategy::hetpipe, Strategy::zebra, Strategy::expert_parallel};

}  // namespace

StrategyOutcome trained_outcome(const PlanRequest& request) {
  auto plan = choose_plan(request.model, request.cluster, request.profile, request.options,
                          request.profile_at);
  if (plan) return measured_outcome(Strategy::configured, std::move(*plan), request.cluster);
  StrategyOutcome refused;
  refused.strategy = Strategy::configured;
  refused.refused = plan.error();
  return refused;
}

StrategyOutcome joint_outcome(JointPlan plan, const ClusterSpec& cluster) {
  StrategyOutcome outcome;
  outcome.strategy = Strategy::automatic;
  outcome.step = plan.step;
  std::vector<DeviceMeasure> uses;
  for (const JointReplica& replica : plan.replicas)
    for (std::size_t s = 0; s < replica.pipeline.stages.size(); ++s) {
      const StagePoint& point = replica.pipeline.points[s];
      const DeviceId device = replica.pipeline.stages[s].device;
      uses.push_back({device,
                      step_sum(point.seconds, replica.microbatches) -
                          step_sum(point.waits, replica.microbatches),
                      static_cast<double>(point.memory.total()) /
                          static_cast<double>(cluster.devices.at(device.index()).memory)});
    }
  set_measures(outcome, uses);
  outcome.joint = std::move(plan);
  return outcome;
}

std::string untrained_text(const JointPlan& plan, const ClusterSpec& cluster) {
  std::vector<std::pair<std::string, std::string>> devices_by_choice;  // in order of first stage
  for (const JointReplica& replica : plan.replicas)
    for (std::size_t s = 0; s < replica.pipeline.stages.size(); ++s) {
      const StageChoices& choices = replica.pipeline.points[s].choices;
      if (choices.plain()) continue;
      const std::string text = to_text(choices);
      const std::string& name = cluster.devices.at(replica.pipeline.stages[s].device.index()).name;
      const auto known = std::find_if(devices_by_choice.begin(), devices_by_choice.end(),
                                      [&](const auto& one) { return one.first == text; });
      if (known == devices_by_choice.end())
        devices_by_choice.emplace_back(text, name);
      else
        known->second += ", " + name;
    }
  std::string text;
  if (plan.replicas.size() > 1) text = counted(plan.replicas.size(), "replica");
  for (const auto& [choice, names] : devices_by_choice)
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", names, choice);
  return text;
}

StrategyOutcome automatic_outcome(const PlanRequest& request,
                                  const std::vector<StrategyOutcome>& known) {
  const auto outcome_of = [&](Strategy strategy) {
    for (const StrategyOutcome& one : known)
      if (one.strategy == strategy) return one;
    return strategy == Strategy::configured ? trained_outcome(request)
                                            : run_strategy(strategy, request);
  };
  StrategyOutcome best = outcome_of(Strategy::configured);
  const auto offer = [&best](StrategyOutcome other) {
    if (other.refused || (!best.refused && other.step >= best.step * (1 - same_time))) return;
    best = std::move(other);
  };
  if (auto joint = joint_plan(request.model, request.cluster, request.profile, request.options,
                              request.profile_at))
    offer(joint_outcome(std::move(*joint), request.cluster));
  for (const Strategy strategy : others) offer(outcome_of(strategy));
  best.strategy = Strategy::automatic;
  return best;
}

}  // namespace troupe
