#include "planner/family_placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "planner/lowering.h"
#include "planner/memory.h"
#include "planner/prerequisites.h"
#include "planner/stage_memory.h"
#include "planner/step_costs.h"

namespace troupe {
namespace {

constexpr std::uint32_t updates_2bw = 4;
/// Actions that all simulations of one placement may play together.
constexpr double most_actions = 4e6;

Error refuse(std::string text) {
  return {ErrorCode::invalid_input, std::move(text)};
}

/// The plan's devices in order of their first stage, and how many layers each has.
struct Share {
  DeviceId device;
  std::uint32_t layers = 0;
};
std::vector<Share> shares_of(const Plan& plan) {
  std::vector<Share> shares;
  for (const StagePlan& stage : plan.stages) {
    auto at = std::find_if(shares.begin(), shares.end(),
                           [&](const Share& share) { return share.device == stage.device; });
    if (at == shares.end()) at = shares.insert(shares.end(), {stage.device, 0});
    at->layers += stage.layers.size();
  }
  return shares;
}

/// The family's devices 0, 1, ... become the plan's.
Schedule on_devices(const Schedule& family,
                    const std::vector<Share>& shares,
                    std::uint32_t device_count) {
  const auto renamed = [&](DeviceId device) { return shares[device.index()].device; };
  Schedule schedule = family;
  schedule.stages.device_count = device_count;
  for (DeviceId& device : schedule.stages.device_of_stage) device = renamed(device);
  schedule.devices.assign(device_count, {});
  for (std::uint32_t d = 0; d < family.devices.size(); ++d)
    schedule.devices[renamed(DeviceId{d}).index()] = family.devices[d];
  schedule.links.clear();
  return schedule;
}

/// The fewest transfer slots, from `slots` on, with which the order does not deadlock.
Result<Schedule> with_slots(Schedule schedule, std::uint32_t slots) {
  const std::uint32_t all = std::max(schedule.stages.microbatch_count, slots);
  for (;; slots = std::min(all, 2 * slots)) {
    schedule.stages.transfer_slots = slots;
    schedule = add_transfers(std::move(schedule));
    const Status holds = validate(schedule);
    if (holds.ok()) return schedule;
    if (slots == all) return holds.error();
  }
}

/// Layers by stage of the chain that starts at stage `first`.
std::vector<std::uint32_t> spread(const StageMap& stages,
                                  std::uint32_t first,
                                  const std::vector<Share>& shares,
                                  std::uint32_t layers) {
  const std::uint32_t length = stages.chain_length();
  std::vector<std::uint32_t> counts(length);
  bool holds = true;
  for (const Share& share : shares) {
    std::vector<std::uint32_t> own;
    for (std::uint32_t k = 0; k < length; ++k)
      if (stages.device_of_stage[first + k] == share.device) own.push_back(k);
    const auto parts = static_cast<std::uint32_t>(own.size());
    for (std::uint32_t i = 0; i < parts; ++i)
      counts[own[i]] = share.layers * (i + 1) / parts - share.layers * i / parts;
    holds = holds && share.layers >= parts;
  }
  if (holds && std::accumulate(counts.begin(), counts.end(), 0U) == layers) return counts;
  for (std::uint32_t k = 0; k < length; ++k)
    counts[k] = layers * (k + 1) / length - layers * k / length;
  return counts;
}

/// Prices placements of one schedule.
class Placement {
 public:
  Placement(const Schedule& schedule,
            const Plan& plan,
            const ClusterSpec& cluster,
            const ModelProfile& profile,
            std::vector<std::uint32_t> extra_versions)
      : schedule_(schedule),
        plan_(plan),
        cluster_(cluster),
        profile_(profile),
        extra_versions_(std::move(extra_versions)) {}

  std::vector<StagePlan> stages(const std::vector<std::uint32_t>& counts) const {
    std::vector<StagePlan> stages;
    std::uint32_t next = 0;
    for (std::uint32_t s = 0; s < counts.size(); ++s) {
      if (schedule_.stages.starts_chain(s)) next = 0;
      stages.push_back({{next, next + counts[s]}, schedule_.stages.device_of_stage[s]});
      next += counts[s];
    }
    return stages;
  }

  std::vector<MemoryPlan> memory(const std::vector<StagePlan>& stages) const {
    auto memory = memory_of(stages, schedule_, cluster_, plan_.model, profile_);
    for (std::uint32_t s = 0; s < stages.size(); ++s)
      memory[stages[s].device.index()].weights +=
          extra_versions_[s] * stage_memory(plan_.model, profile_, stages[s].layers, 0, 0).weights;
    return memory;
  }

  /// Bytes over the devices' memory, then seconds of the step: less is better.
  std::tuple<Bytes, Seconds> price(const std::vector<std::uint32_t>& counts) const {
    const auto placed = stages(counts);
    Bytes over = 0;
    const auto needed = memory(placed);
    for (std::size_t d = 0; d < needed.size(); ++d)
      over += std::max(needed[d].total(), cluster_.devices[d].memory) - cluster_.devices[d].memory;
    return {over, simulated_seconds(schedule_,
                                    family_costs(placed, schedule_, plan_, cluster_, profile_))};
  }

  /// Moves one layer at a time over the best border, while that helps and the budget lasts.
  std::vector<std::uint32_t> improved(std::vector<std::uint32_t> counts) const {
    double actions = 0;
    for (const auto& lane : schedule_.devices) actions += static_cast<double>(lane.size());
    auto tries = static_cast<std::int64_t>(most_actions / std::max(2 * actions, 1.0));
    auto best = price(counts);
    for (bool moved = true; moved && tries > 0;) {
      moved = false;
      auto chosen = counts;
      for (std::uint32_t s = 0; s + 1 < counts.size(); ++s) {
        if (schedule_.stages.ends_chain(s)) continue;
        for (const auto& [from, to] : {std::pair{s, s + 1}, std::pair{s + 1, s}}) {
          if (counts[from] < 2 || tries-- <= 0) continue;
          auto other = counts;
          --other[from];
          ++other[to];
          const auto priced = price(other);
          if (!(priced < best)) continue;
          best = priced;
          chosen = std::move(other);
          moved = true;
        }
      }
      counts = std::move(chosen);
    }
    return counts;
  }

 private:
  const Schedule& schedule_;
  const Plan& plan_;
  const ClusterSpec& cluster_;
  const ModelProfile& profile_;
  std::vector<std::uint32_t> extra_versions_;  ///< by stage: of its weights
};

std::vector<std::string> notes_of(ScheduleFamily family) {
  if (family == ScheduleFamily::pipedream_2bw)
    return {
        fmt::format("{} updates without a flush between them; the step is a part of {}, and "
                    "gradient norm and update stand at the end alone",
                    updates_2bw, updates_2bw)};
  if (family == ScheduleFamily::chimera || family == ScheduleFamily::dualpipe)
    return {
        "every device holds weights of both directions; adding up their gradients costs "
        "nothing here"};
  return {};
}

}  // namespace

StepCosts family_costs(const std::vector<StagePlan>& stages,
                       const Schedule& schedule,
                       const Plan& plan,
                       const ClusterSpec& cluster,
                       const ModelProfile& profile) {
  StepCosts costs = step_costs(stages, cluster, plan.model, profile, plan.shape.compute);
  for (std::uint32_t s = 0; s < stages.size(); ++s) {  // the ends of every chain
    const auto other = other_tied_end(StageId{s}, schedule.stages);
    if (!other || stages[s].device == stages[other->index()].device) continue;
    costs.transfer_tied[s] =
        transfer_seconds(cluster.link(stages[s].device, stages[other->index()].device),
                         token_table_bytes(plan.model));
  }
  return costs;
}

Result<FamilyStep> place_family(ScheduleFamily family,
                                const Plan& plan,
                                const ClusterSpec& cluster,
                                const ModelProfile& profile) {
  const auto shares = shares_of(plan);
  const std::uint32_t layers = layer_count(plan.model);
  const bool without_flush = family == ScheduleFamily::pipedream_2bw;
  FamilyStep step;
  step.updates = without_flush ? updates_2bw : 1;
  FamilyShape shape{static_cast<std::uint32_t>(shares.size()),
                    plan.shape.microbatch_count * step.updates, 2};
  if (family == ScheduleFamily::layered) shape.loops = layers;
  const auto made = make_schedule(family, shape);
  if (!made) return made.error();
  if (made->stages.chain_length() > layers)
    return refuse(
        fmt::format("schedule \"{}\" on {} devices has {} stages, more than the model's "
                    "{} layers (embedding and head are layers too)",
                    to_string(family), shares.size(), made->stages.chain_length(), layers));
  Schedule placed = on_devices(*made, shares, static_cast<std::uint32_t>(cluster.devices.size()));
  placed.stages.tied = plan.model.tied;
  auto lowered = with_slots(std::move(placed), plan.schedule.stages.transfer_slots);
  if (!lowered) return lowered.error();
  step.schedule = std::move(*lowered);

  std::vector<std::uint32_t> extra_versions(step.schedule.stages.stage_count(), 0);
  if (without_flush) {
    const auto versions = weight_versions_2bw(step.schedule, plan.shape.microbatch_count);
    for (std::size_t s = 0; s < versions.size(); ++s) extra_versions[s] = versions[s] - 1;
  }
  const Placement placement(step.schedule, plan, cluster, profile, std::move(extra_versions));
  std::vector<std::uint32_t> counts;
  for (std::uint32_t s = 0; s < step.schedule.stages.stage_count();
       s += step.schedule.stages.chain_length()) {
    const auto chain = spread(step.schedule.stages, s, shares, layers);
    counts.insert(counts.end(), chain.begin(), chain.end());
  }
  step.stages = placement.stages(placement.improved(std::move(counts)));
  step.memory = placement.memory(step.stages);
  step.notes = notes_of(family);
  return step;
}

}  // namespace troupe
