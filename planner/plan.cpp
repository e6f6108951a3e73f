#include "planner/plan.h"
#include "planner/counted.h"

#include <fmt/format.h>

#include <algorithm>

#include "planner/memory.h"
#include "planner/partition.h"
#include "planner/plan_checks.h"
#include "planner/plan_measures.h"
#include "planner/schedules.h"
#include "planner/simulate.h"
#include "planner/step_costs.h"

namespace troupe {
namespace {

Error refuse(std::string text) {
  return {ErrorCode::invalid_input, std::move(text)};
}

std::string half_open_text(const LayerRange& range) {
  return fmt::format("[{}, {})", range.first, range.last);
}

/// Pinned stages hold every layer once, in order, or are refused by name.
Status check_pinned(const std::vector<StagePlan>& pinned,
                    const ModelSpec& model,
                    const ClusterSpec& cluster) {
  const std::uint32_t layers = layer_count(model);
  std::uint32_t next = 0;
  for (std::size_t s = 0; s < pinned.size(); ++s) {
    const LayerRange& range = pinned[s].layers;
    if (pinned[s].device.index() >= cluster.devices.size())
      return refuse(fmt::format("plan: stage {} is pinned to device {}, but there are {} devices",
                                s, pinned[s].device.value, cluster.devices.size()));
    if (range.first >= range.last)
      return refuse(fmt::format("plan: pinned stage {} holds no layer: {}; leave the stage out", s,
                                half_open_text(range)));
    if (range.first != next)
      return refuse(
          fmt::format("plan: pinned stage {} holds layers {}, but the next layer to be "
                      "placed is {}; every layer is placed exactly once",
                      s, half_open_text(range), next));
    const std::uint64_t again =
        std::uint64_t{pinned[s].recompute.full} + pinned[s].recompute.selective;
    if (again > block_count(model, range))
      return refuse(fmt::format("plan: pinned stage {} computes {} again and holds {}", s,
                                counted(again, "block"),
                                counted(block_count(model, range), "block")));
    next = range.last;
  }
  if (next != layers)
    return refuse(
        fmt::format("plan: pinned stages hold {} of {} layers (embedding, {} blocks, "
                    "head); {} != {}",
                    next, layers, model.blocks, next, layers));
  return {};
}

/// The device that is furthest over its memory, if one is.
std::optional<Shortfall> shortfall_of(const std::vector<MemoryPlan>& memory,
                                      const ClusterSpec& cluster) {
  std::optional<Shortfall> worst;
  Bytes worst_over = 0;
  for (std::uint32_t d = 0; d < memory.size(); ++d) {
    const Bytes needed = memory[d].total();
    const Bytes free = cluster.devices[d].memory;
    if (needed <= free || (worst && needed - free <= worst_over)) continue;
    worst_over = needed - free;
    worst = Shortfall{DeviceId{d}, needed, {}};
  }
  return worst;
}

/// A complete plan for given stages; memory is filled, not checked.
Result<Plan> plan_for(std::vector<StagePlan> stages,
                      const ModelSpec& model,
                      const ClusterSpec& cluster,
                      const ModelProfile& profile,
                      const PlanOptions& options) {
  Plan plan;
  plan.model = model;
  plan.shape = options.shape;
  plan.schedule_kind = options.schedule;
  auto schedule = make_schedule(options.schedule, stage_map_of(stages, cluster, model, options));
  if (!schedule) return schedule.error();
  plan.schedule = std::move(*schedule);
  plan.stages = std::move(stages);
  plan.in_flight = in_flight_per_stage(plan.schedule);
  plan.deferred = deferred_per_stage(plan.schedule);
  plan.memory = memory_of(plan.stages, plan.schedule, cluster, model, profile);
  plan.timeline = simulate(plan.schedule,
                           step_costs(plan.stages, cluster, model, profile, options.shape.compute));
  plan.predicted_step = plan.timeline.makespan();
  std::vector<bool> used(cluster.devices.size());
  for (const StagePlan& stage : plan.stages) used[stage.device.index()] = true;
  for (std::uint32_t d = 0; d < used.size(); ++d)
    if (!used[d]) plan.unused.push_back(DeviceId{d});
  return plan;
}

/// Whether the request fits with other options: pinned stages as they stand, else any partition.
bool would_fit(const ModelSpec& model,
               const ClusterSpec& cluster,
               const ModelProfile& profile,
               const PlanOptions& options) {
  if (options.pinned.empty())
    return search_partition(model, cluster, profile, options).found.has_value();
  const auto plan = plan_for(options.pinned, model, cluster, profile, options);
  return plan.ok() && !shortfall_of(plan->memory, cluster);
}

/// "t4 at least 12772 KiB": rounded up, so that it fits when taken at its word.
std::string enough_text(const DeviceSpec& device, Bytes needed) {
  return fmt::format("{} at least {} KiB", device.name, (needed + 1023) / 1024);
}

/// More memory for every device that is short under the stages that come nearest to fitting.
std::string more_memory(const ModelSpec& model,
                        const ClusterSpec& cluster,
                        const ModelProfile& profile,
                        const PlanOptions& options,
                        const Shortfall& shortfall) {
  const auto& stages = options.pinned.empty() ? shortfall.stages : options.pinned;
  std::string text;
  if (const auto plan = plan_for(stages, model, cluster, profile, options))
    for (std::size_t d = 0; d < plan->memory.size(); ++d)
      if (plan->memory[d].total() > cluster.devices[d].memory)
        text +=
            (text.empty() ? "" : ", ") + enough_text(cluster.devices[d], plan->memory[d].total());
  if (text.empty()) text = enough_text(cluster.devices[shortfall.device.index()], shortfall.needed);
  return "memory of " + text;
}

/// The nearest change that would make the request fit.
std::string remedy(const ModelSpec& model,
                   const ClusterSpec& cluster,
                   const ModelProfile& profile,
                   const PlanOptions& options,
                   const ProfileAt& profile_at,
                   const Shortfall& shortfall) {
  const std::string more = more_memory(model, cluster, profile, options, shortfall);
  // Of all changes this one alone leaves every bit as it was.
  PlanOptions again = options;
  again.recompute = Recompute::full;
  for (StagePlan& stage : again.pinned)
    stage.recompute = recompute_all(model, stage.layers, Recompute::full);
  if (options.schedule != ScheduleKind::zero_bubble_h1 && would_fit(model, cluster, profile, again))
    return fmt::format("recompute = \"auto\" would fit, or {}", more);
  for (std::uint32_t size = options.shape.microbatch_size / 2; profile_at && size > 0; size /= 2) {
    PlanOptions smaller = options;
    smaller.shape.microbatch_size = size;
    smaller.shape.microbatch_count = (std::max(options.shape.batch_size, 1u) + size - 1) / size;
    if (would_fit(model, cluster, profile_at(smaller.shape), smaller))
      return fmt::format("microbatches = {} (of {}) would fit, or {}",
                         smaller.shape.microbatch_count, size, more);
  }
  if (options.schedule != ScheduleKind::one_f_one_b) {
    PlanOptions other = options;
    other.schedule = ScheduleKind::one_f_one_b;
    if (would_fit(model, cluster, profile, other))
      return fmt::format("schedule = \"1f1b\" would fit, or {}", more);
  }
  if (!options.pinned.empty()) {
    PlanOptions automatic = options;
    automatic.pinned.clear();
    if (would_fit(model, cluster, profile, automatic))
      return fmt::format("stages chosen automatically would fit, or {}", more);
  }
  return more + " would fit";
}

Error does_not_fit(const ModelSpec& model,
                   const ClusterSpec& cluster,
                   const ModelProfile& profile,
                   const PlanOptions& options,
                   const ProfileAt& profile_at,
                   const Shortfall& shortfall) {
  const DeviceSpec& device = cluster.devices[shortfall.device.index()];
  return {ErrorCode::does_not_fit,
          fmt::format("plan: does not fit: {} needs {} ({} bytes) and has {} ({} bytes), short by "
                      "{} bytes; {}",
                      device.name, format_bytes(shortfall.needed), shortfall.needed,
                      format_bytes(device.memory), device.memory, shortfall.needed - device.memory,
                      remedy(model, cluster, profile, options, profile_at, shortfall))};
}

std::string placement_text(const std::vector<StagePlan>& stages, const ClusterSpec& cluster) {
  std::string text;
  for (const StagePlan& stage : stages)
    text += fmt::format("{}{} x{}", text.empty() ? "" : ", ",
                        cluster.devices[stage.device.index()].name, stage.layers.size());
  return text;
}

/// "dev3", or "dev3 and 12 others" where there are too many to list.
std::vector<std::string> unused_names(const Plan& plan, const ClusterSpec& cluster) {
  constexpr std::size_t most_listed = 8;
  std::vector<std::string> names;
  if (plan.unused.size() > most_listed)
    return {fmt::format("{} and {} others", cluster.devices[plan.unused.front().index()].name,
                        plan.unused.size() - 1)};
  for (const DeviceId device : plan.unused) names.push_back(cluster.devices[device.index()].name);
  return names;
}

/// What holds the step back, what came second, what is left over.
void add_notes(Plan& plan, const ClusterSpec& cluster, const Partition* search) {
  const std::vector<Seconds> busy = busy_of_devices(plan);
  const auto longest = std::max_element(busy.begin(), busy.end());
  const Seconds most = *longest;
  const auto busiest = static_cast<std::size_t>(longest - busy.begin());
  const auto note = [&plan](NoteKind kind, std::string text) {
    plan.notes.push_back({kind, std::move(text)});
  };
  note(NoteKind::binding,
       fmt::format("{} computes for {} of the step's {} ({:.1f} %)", cluster.devices[busiest].name,
                   format_seconds(most), format_seconds(plan.predicted_step),
                   100 * most / std::max(plan.predicted_step, 1e-300)));
  if (search == nullptr) {
    note(NoteKind::stages, "pinned by the configuration");
  } else {
    note(NoteKind::search,
         fmt::format("{} candidates fit, {} simulated, {}", search->candidates, search->simulated,
                     search->exact ? "the optimum" : "the best of a heuristic"));
    if (!search->runner_up.empty())
      note(NoteKind::runner_up,
           fmt::format("{} in {} ({:+.1f} %)", placement_text(search->runner_up, cluster),
                       format_seconds(search->runner_up_step),
                       100 * (search->runner_up_step / std::max(search->step, 1e-300) - 1)));
  }
  for (const std::string& name : unused_names(plan, cluster))
    note(NoteKind::unused,
         search == nullptr
             ? fmt::format("{} is not among the pinned stages", name)
             : fmt::format("{}: giving it layers would not make the step shorter", name));
}

}  // namespace

Result<Plan> make_plan(const ModelSpec& model,
                       const ClusterSpec& cluster,
                       const ModelProfile& profile,
                       const PlanOptions& options,
                       const ProfileAt& profile_at) {
  TROUPE_TRY(check_request(model, cluster, options));
  if (!options.pinned.empty()) {
    TROUPE_TRY(check_pinned(options.pinned, model, cluster));
    auto plan = plan_for(options.pinned, model, cluster, profile, options);
    if (!plan) return plan;
    if (const auto shortfall = shortfall_of(plan->memory, cluster))
      return does_not_fit(model, cluster, profile, options, profile_at, *shortfall);
    add_notes(*plan, cluster, nullptr);
    return plan;
  }
  const PartitionSearch search = search_partition(model, cluster, profile, options);
  if (!search.found)
    return does_not_fit(model, cluster, profile, options, profile_at, search.shortfall);
  return plan_of(*search.found, model, cluster, profile, options);
}

Result<Plan> plan_of(const Partition& found,
                     const ModelSpec& model,
                     const ClusterSpec& cluster,
                     const ModelProfile& profile,
                     const PlanOptions& options) {
  auto plan = plan_for(found.stages, model, cluster, profile, options);
  if (!plan) return plan;
  EXPECTS(!shortfall_of(plan->memory, cluster));
  add_notes(*plan, cluster, &found);
  return plan;
}

}  // namespace troupe
