#include "apps/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/config_schema.h"
#include "kernels/stage.h"
#include "planner/family_placement.h"
#include "planner/memory.h"
#include "planner/partition.h"
#include "planner/prerequisites.h"
#include "planner/step_costs.h"

namespace troupe {
namespace {

Error refuse(std::string text) {
  return {ErrorCode::invalid_input, std::move(text)};
}

constexpr ScheduleKind trained_kinds[]{ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                                       ScheduleKind::interleaved, ScheduleKind::zero_bubble_h1};

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const ScheduleKind kind : trained_kinds) names.emplace_back(to_string(kind));
  for (std::size_t f = 0; f < schedule_family_count; ++f)
    names.emplace_back(to_string(static_cast<ScheduleFamily>(f)));
  return names;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// Costs from the model's profile; links as changed.
auto priced(const ClusterSpec& cluster, std::function<StepCosts(const ClusterSpec&)> costs) {
  return [cluster, costs = std::move(costs)](const WhatIf& what_if) -> Result<ActionSeconds> {
    const auto made = std::make_shared<StepCosts>(costs(changed(cluster, what_if)));
    return ActionSeconds([made](const Action& action) { return made->of(action); });
  };
}

/// Times of a plan.json: those of its timeline; a changed link needs both figures, as its own are
/// not in the file.
Result<ActionSeconds> recorded(const Plan& plan, Bytes boundary, const WhatIf& what_if) {
  const ActionIndex index(plan.schedule.stages);
  auto seconds = std::make_shared<std::vector<Seconds>>(index.size());
  for (const Span& span : plan.timeline.spans)
    seconds->at(index.of(span.action)) = span.end - span.begin;
  for (const LinkChange& change : what_if.links) {
    if (!change.latency && !change.bandwidth) continue;
    if (!change.latency || !change.bandwidth)
      return refuse(
          "--link: a plan.json does not say what its links are like; give latency and "
          "bandwidth both, or the configuration instead");
    for (const LinkLane& link : plan.schedule.links) {
      if (link.from != change.from || link.to != change.to) continue;
      for (const Action& action : link.actions)
        seconds->at(index.of(action)) = transfer_seconds(
            {*change.latency, *change.bandwidth},
            action.op == Op::transfer_tied ? token_table_bytes(plan.model) : boundary);
    }
  }
  return ActionSeconds(
      [seconds, index](const Action& action) { return seconds->at(index.of(action)); });
}

/// Why a file is no plan: what else of this program's it is, or the reader's reason.
std::string whose_json(const std::string& text, const Error& refused) {
  const auto file = nlohmann::json::parse(text, nullptr, false);
  if (file.is_object() && file.contains("workers"))
    return "virtual workers side by side (plan --strategy hetpipe), which are priced without a "
           "schedule to play; nearest: the plan.json of one pipeline, as plan --json prints it";
  if (file.is_object() && file.contains("plan") && file.contains("reasons"))
    return "a plan with its reasons (plan --explain --json); nearest: plan --json without "
           "--explain";
  if (file.is_array())
    return "a table of several (--compare, or several schedules); nearest: the plan.json of one "
           "plan, as plan --json prints it";
  return refused.text;
}

/// Every action of the schedule has its span, on its lane.
Status check_timeline(const Plan& plan) {
  std::size_t actions = 0;
  for (const auto& lane : plan.schedule.devices) actions += lane.size();
  for (const LinkLane& link : plan.schedule.links) actions += link.actions.size();
  const StageMap& stages = plan.schedule.stages;
  ActionSet seen(stages);
  for (const Span& span : plan.timeline.spans) {
    if (span.action.stage.index() >= stages.stage_count() ||
        span.action.microbatch.index() >= stages.microbatch_count || seen.contains(span.action) ||
        !(span.end >= span.begin))
      return Error{ErrorCode::invalid_input,
                   fmt::format("plan.json: the timeline's {} is not of this "
                               "schedule, or stands there twice",
                               to_string(span.action))};
    seen.insert(span.action);
  }
  if (plan.timeline.spans.size() != actions)
    return Error{ErrorCode::invalid_input,
                 fmt::format("plan.json: the timeline has {} spans, the schedule {} actions",
                             plan.timeline.spans.size(), actions)};
  return {};
}

}  // namespace

Status check_schedule_name(const std::string& name) {
  if (name.empty() || parse_schedule_kind(name) || parse_schedule_family(name)) return {};
  return refuse(fmt::format("--schedule {}: there is no such schedule; nearest: {}; there are {}",
                            name, nearest_of_all(name, schedule_names()),
                            joined(schedule_names())));
}

SimulationSource SimulationSource::from_planned(const std::string& name,
                                                const RunSpec& spec,
                                                PlannedRun planned,
                                                ModelProfile profile,
                                                const std::string& note) {
  SimulationSource source;
  source.name_ = name;
  if (!note.empty()) source.notes_.push_back(note);
  source.spec_ = std::make_shared<const RunSpec>(settled(spec, planned.plan));
  source.plan_ = std::move(planned.plan);
  source.cluster_ = std::move(planned.cluster);
  source.profile_ = std::move(profile);
  return source;
}

Result<SimulationSource> SimulationSource::from_plan_json(const std::string& name,
                                                          const std::string& text) {
  auto plan = plan_from_json(text);
  if (!plan) return Error{ErrorCode::invalid_input, name + ": " + whose_json(text, plan.error())};
  TROUPE_TRY(check_timeline(*plan));
  SimulationSource source;
  source.name_ = name;
  source.plan_ = std::move(*plan);
  for (const PlanNote& note : source.plan_.notes)
    if (note.kind == NoteKind::looked_at) source.notes_.push_back(to_text(note));
  // The reader has held every key and type; it keeps no names, as a plan needs none.
  const auto file = nlohmann::json::parse(text);
  for (const auto& entry : file.at("devices")) {
    DeviceSpec device;
    device.name = entry.at("name");
    device.memory = entry.at("memory");
    source.cluster_.devices.push_back(std::move(device));
  }
  source.cluster_.nodes.push_back({"", false});
  source.profile_ = profile_model(source.plan_.model, source.plan_.shape);
  return source;
}

SimulationCase SimulationSource::case_of(const Plan& plan) const {
  SimulationCase one;
  one.source = name_;
  one.schedule_name = to_string(plan.schedule_kind);
  one.cluster = cluster_;
  one.shape = plan.shape;
  one.stages = plan.stages;
  one.schedule = plan.schedule;
  one.memory = plan.memory;
  one.notes = notes_;
  if (spec_ == nullptr)
    one.seconds = [plan, bytes = boundary_bytes(profile_)](const WhatIf& what_if) {
      return recorded(plan, bytes, what_if);
    };
  else
    one.seconds = priced(cluster_, [plan, profile = profile_](const ClusterSpec& cluster) {
      return step_costs(plan.stages, cluster, plan.model, profile, plan.shape.compute);
    });
  return one;
}

Result<SimulationCase> SimulationSource::schedule(const std::string& name) const {
  const auto kind = parse_schedule_kind(name);
  if (name.empty() || (kind && *kind == plan_.schedule_kind)) return case_of(plan_);
  const auto family = parse_schedule_family(name);
  TROUPE_TRY(check_schedule_name(name));
  if (spec_ == nullptr)
    return refuse(
        fmt::format("--schedule {}: {} holds the times of its own schedule ({}) alone; "
                    "give the configuration instead",
                    name, name_, to_string(plan_.schedule_kind)));
  if (kind) {
    PlanOptions options = spec_->plan;
    options.shape = spec_->shape;
    options.schedule = *kind;
    options.chunks = *kind == ScheduleKind::interleaved ? std::max(options.chunks, 2U) : 1;
    const auto plan = make_plan(spec_->model, cluster_, profile_, options);
    if (!plan) return plan.error();
    SimulationCase one = case_of(*plan);
    if (options.chunks != std::max(spec_->plan.chunks, 1U) && *kind == ScheduleKind::interleaved)
      one.notes.push_back(fmt::format(
          "{} stages a device, as plan.chunks says nothing else; a configuration that trains with "
          "this schedule sets plan.chunks",
          options.chunks));
    return one;
  }
  const auto placed = place_family(*family, plan_, cluster_, profile_);
  if (!placed) return placed.error();
  SimulationCase one = case_of(plan_);
  one.schedule_name = name;
  one.stages = placed->stages;
  one.schedule = placed->schedule;
  one.memory = placed->memory;
  one.updates = placed->updates;
  one.notes.insert(one.notes.end(), placed->notes.begin(), placed->notes.end());
  one.seconds = priced(cluster_, [placed = *placed, family = *family, plan = plan_,
                                  profile = profile_](const ClusterSpec& cluster) {
    return family_costs(placed.stages, placed.schedule, plan, cluster, profile);
  });
  return one;
}

std::optional<SimulationCase> SimulationSource::runner_up() const {
  if (spec_ == nullptr || !spec_->plan.pinned.empty()) return std::nullopt;
  PlanOptions options = spec_->plan;
  options.shape = spec_->shape;
  const auto search = search_partition(spec_->model, cluster_, profile_, options);
  if (!search.found || search.found->runner_up.empty()) return std::nullopt;
  options.pinned = search.found->runner_up;
  const auto plan = make_plan(spec_->model, cluster_, profile_, options);
  if (!plan) return std::nullopt;
  return case_of(*plan);
}

Result<SimulatedStep> simulate_case(const SimulationCase& one, const WhatIf& what_if) {
  const auto planned = one.seconds({});
  if (!planned) return planned.error();
  const auto seconds = one.seconds(what_if);
  if (!seconds) return seconds.error();
  SimulatedStep step;
  step.undisturbed = simulate(one.schedule, *planned).makespan() / one.updates;
  step.played = play_step(one.schedule, disturbed(one.schedule, *seconds, what_if));
  step.seconds = step.played.timeline.makespan() / one.updates;
  step.use = device_use(one.schedule, step.played.timeline);
  step.bubble = bubble_share(one.schedule, step.use);
  step.hang = hang_lines(one.schedule, step.played, what_if, device_names(one.cluster));
  double used = 0;
  for (std::size_t d = 0; d < step.use.size(); ++d) {
    if (one.schedule.devices[d].empty()) continue;
    step.exposed += step.use[d].exposed / one.updates;
    ++used;
  }
  step.exposed /= std::max(used, 1.0);
  return step;
}

std::string shortfall_text(const SimulationCase& one) {
  std::string text;
  for (std::size_t d = 0; d < one.memory.size(); ++d) {
    const Bytes needed = one.memory[d].total();
    const DeviceSpec& device = one.cluster.devices[d];
    if (needed <= device.memory) continue;
    text += fmt::format("{}{} needs {} and has {}", text.empty() ? "" : ", ", device.name,
                        format_bytes(needed), format_bytes(device.memory));
  }
  return text;
}

}  // namespace troupe
