#include "apps/outcome_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/html.h"
#include "apps/joint_tables.h"
#include "apps/strategy_tables.h"
#include "planner/automatic.h"
#include "planner/counted.h"
#include "planner/schedules.h"
#include "planner/step_costs.h"

namespace troupe {
namespace {

PagePlan played(std::string title, SimulationCase plan, const StepCosts& costs) {
  plan.seconds = [costs](const WhatIf&) -> Result<ActionSeconds> {
    return ActionSeconds([costs](const Action& action) { return costs.of(action); });
  };
  auto step = simulate_case(plan, {});
  EXPECTS(step.ok());  // without what-ifs nothing can be refused
  return {std::move(title), std::move(plan), std::move(*step), {}};
}

PagePlan page_of_plan(std::string title, const Plan& plan, const PlanRequest& request) {
  SimulationCase one;
  one.schedule_name = to_string(plan.schedule_kind);
  one.cluster = request.cluster;
  one.shape = plan.shape;
  one.stages = plan.stages;
  one.schedule = plan.schedule;
  one.memory = plan.memory;
  const bool as_asked = plan.shape == request.options.shape || !request.profile_at;
  const ModelProfile profile = as_asked ? request.profile : request.profile_at(plan.shape);
  const ClusterSpec cluster =
      with_microbatches(request.cluster, request.profile, profile, plan.shape.microbatch_size);
  return played(std::move(title), std::move(one),
                step_costs(plan.stages, cluster, plan.model, profile, plan.shape.compute));
}

/// A replica alone: its devices are the whole cluster.
PagePlan page_of_replica(std::string title,
                         const JointPlan& plan,
                         const JointReplica& replica,
                         const PlanRequest& request) {
  std::vector<std::uint32_t> members;
  for (const StagePlan& stage : replica.pipeline.stages) members.push_back(stage.device.value);
  std::sort(members.begin(), members.end());
  SimulationCase one;
  one.schedule_name = to_string(ScheduleKind::one_f_one_b);
  one.cluster = part_of(request.cluster, members);
  one.shape = plan.shape;
  one.shape.microbatch_count = replica.microbatches;
  one.shape.batch_size = replica.microbatches * plan.shape.microbatch_size;
  one.stages = replica.pipeline.stages;
  one.memory.resize(members.size());
  StageMap map;
  for (std::size_t s = 0; s < one.stages.size(); ++s) {
    const auto place = std::lower_bound(members.begin(), members.end(), one.stages[s].device.value);
    one.stages[s].device = DeviceId{static_cast<std::uint32_t>(place - members.begin())};
    one.memory[one.stages[s].device.index()] = replica.pipeline.points[s].memory;
    map.device_of_stage.push_back(one.stages[s].device);
  }
  map.microbatch_count = replica.microbatches;
  map.device_count = static_cast<std::uint32_t>(members.size());
  map.tied = request.model.tied;
  map.transfer_slots = request.options.transfer_slots;
  auto schedule = make_schedule(ScheduleKind::one_f_one_b, map);
  EXPECTS(schedule.ok());  // the search timed the same one
  one.schedule = std::move(*schedule);
  const bool as_asked = plan.shape == request.options.shape || !request.profile_at;
  const ModelProfile profile = as_asked ? request.profile : request.profile_at(plan.shape);
  StepCosts costs = step_costs(one.stages, one.cluster, request.model, profile, plan.shape.compute);
  for (std::size_t s = 0; s < one.stages.size(); ++s)
    costs.stages[s] = replica.pipeline.points[s].seconds;
  return played(std::move(title), std::move(one), costs);
}

/// The tables of what is not one pipeline that trains.
std::string outcome_tables(const StrategyOutcome& outcome, const ClusterSpec& cluster) {
  if (outcome.joint)
    return section("Stages", html_table(joint_stage_table(*outcome.joint, cluster))) +
           section("Memory by device and tier",
                   html_table(joint_memory_table(*outcome.joint, cluster)));
  if (outcome.workers)
    return section("Virtual workers", html_table(worker_table(*outcome.workers, cluster)));
  if (outcome.experts)
    return section("Attention and experts",
                   "<p>" + escape_html(expert_text(*outcome.experts)) + "</p>\n" +
                       html_table(expert_table(*outcome.experts, cluster)));
  return "";
}

std::string outcome_line(const StrategyOutcome& outcome, const ClusterSpec& cluster) {
  const std::string step = fmt::format("strategy {}: predicted step {}",
                                       to_string(outcome.strategy), format_seconds(outcome.step));
  if (outcome.plan) return step;
  const std::string untrained =
      outcome.joint     ? outcome.joint->trains() ? "" : untrained_text(*outcome.joint, cluster)
          : outcome.workers ? counted(outcome.workers->workers.size(), "virtual worker")
                        : "experts apart from attention";
  return untrained.empty() ? step : step + "; priced, does not train yet: " + untrained;
}

}  // namespace

std::vector<PagePlan> outcome_pages(const StrategyOutcome& outcome, const PlanRequest& request) {
  std::vector<PagePlan> pages;
  const std::string name(to_string(outcome.strategy));
  if (outcome.plan) pages.push_back(page_of_plan(name, *outcome.plan, request));
  if (!outcome.joint) return pages;
  const auto& replicas = outcome.joint->replicas;
  for (std::size_t r = 0; r < replicas.size(); ++r)
    pages.push_back(page_of_replica(
        replicas.size() == 1 ? name
                             : fmt::format("{}, replica {} of {} ({})", name, r, replicas.size(),
                                           counted(replicas[r].microbatches, "microbatch")),
        *outcome.joint, replicas[r], request));
  return pages;
}

std::string outcome_page(const std::string& name,
                         const std::string& note,
                         const StrategyOutcome& outcome,
                         const StrategyOutcome& trained,
                         const PlanRequest& request) {
  EXPECTS(!outcome.refused);
  std::vector<PagePlan> pages = outcome_pages(outcome, request);
  const std::string trains = "the plan that trains";
  if (trained.refused) {
    pages.push_back({trains, {}, {}, trained.refused->text});
  } else {
    for (PagePlan& page : outcome_pages(trained, request)) {
      page.title = trains;
      pages.push_back(std::move(page));
    }
  }
  std::string subtitle = outcome_line(outcome, request.cluster) + "; all timelines have one scale";
  if (outcome.joint && outcome.joint->exchange > 0)
    subtitle += fmt::format("\nof the step, {} are the exchange of gradients after the replicas",
                            format_seconds(outcome.joint->exchange));
  if (!note.empty()) subtitle += "\n" + note;
  return side_by_side_page(name, subtitle, outcome_tables(outcome, request.cluster), pages);
}

}  // namespace troupe
