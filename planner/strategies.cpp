#include "planner/strategies.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "planner/automatic.h"
#include "planner/balanced_memory.h"
#include "planner/counted.h"
#include "planner/device_kinds.h"
#include "planner/expert_strategy.h"
#include "planner/overflow.h"
#include "planner/pipeline_time.h"
#include "planner/plan_checks.h"
#include "planner/plan_measures.h"
#include "planner/pricer.h"
#include "planner/step_costs.h"

namespace troupe {
namespace {

struct Named {
  Strategy strategy;
  std::string_view name;
};
constexpr Named names[] = {
    {Strategy::even, "even"},       {Strategy::edgepipe, "edgepipe"},
    {Strategy::hetpipe, "hetpipe"}, {Strategy::memory_balanced, "memory-balanced"},
    {Strategy::zebra, "zebra"},     {Strategy::expert_parallel, "expert-parallel"},
    {Strategy::automatic, "auto"},  {Strategy::configured, "configured"}};

StrategyOutcome refused(Strategy strategy, Error error) {
  StrategyOutcome outcome;
  outcome.strategy = strategy;
  outcome.refused = std::move(error);
  return outcome;
}

Error one_stage_each(Strategy strategy) {
  return {ErrorCode::invalid_input,
          fmt::format("{} gives a device one stage, and the schedule is interleaved; nearest: "
                      "schedule = \"1f1b\"",
                      to_string(strategy))};
}

/// A plan of these stages, or why not.
StrategyOutcome pinned(Strategy strategy,
                       const PlanRequest& request,
                       std::vector<StagePlan> stages,
                       const std::string& how) {
  PlanOptions options = request.options;
  options.pinned = std::move(stages);
  for (StagePlan& stage : options.pinned)
    stage.recompute = recompute_all(request.model, stage.layers, options.recompute);
  auto plan =
      make_plan(request.model, request.cluster, request.profile, options, request.profile_at);
  if (!plan) return refused(strategy, plan.error());
  for (PlanNote& note : plan->notes)
    if (note.kind == NoteKind::stages) note.text = how;
  return measured_outcome(strategy, std::move(*plan), request.cluster);
}

StrategyOutcome even(const PlanRequest& request) {
  const std::uint32_t layers = layer_count(request.model);
  const std::uint32_t count =
      std::min(layers, static_cast<std::uint32_t>(request.cluster.devices.size()));
  std::vector<StagePlan> stages;
  for (std::uint32_t s = 0; s < count; ++s)
    stages.push_back({{static_cast<std::uint32_t>(std::uint64_t{s} * layers / count),
                       static_cast<std::uint32_t>((std::uint64_t{s} + 1) * layers / count)},
                      DeviceId{s}});
  return pinned(Strategy::even, request, std::move(stages), "even, in the cluster's order");
}

StrategyOutcome memory_balanced(const PlanRequest& request) {
  if (request.options.schedule == ScheduleKind::interleaved)
    return refused(Strategy::memory_balanced, one_stage_each(Strategy::memory_balanced));
  const std::vector<StagePlan> stages = balanced_memory_stages(request);
  std::string how = "the fullest device is filled least, roomy devices first";
  const std::size_t most =
      std::min<std::size_t>(request.cluster.devices.size(), layer_count(request.model));
  if (stages.size() < most)
    how += fmt::format(
        "; on {} of {}, as more stages have more buffers, workspace and inputs in flight, which "
        "fill the fullest no less (by a hundredth of its memory at least)",
        stages.size(), counted(request.cluster.devices.size(), "device"));
  StrategyOutcome outcome = pinned(Strategy::memory_balanced, request, stages, how);
  if (!outcome.refused || request.options.schedule != ScheduleKind::one_f_one_b) return outcome;
  if (const auto shipped = ship_overflow(stages, request))
    outcome.refused->text += fmt::format(
        "; with activations shipped to where there is room it would fit ({}; {} of the step is not "
        "hidden), which is priced only",
        to_text(*shipped, stages, request.cluster), format_seconds(shipped->exposed));
  return outcome;
}

// ---- virtual workers ----

/// By kind: its first device.
std::vector<std::uint32_t> examples_of(const WorkerCluster& cluster) {
  std::vector<std::uint32_t> examples;
  for (std::uint32_t d = 0; d < cluster.devices.size(); ++d)
    if (cluster.devices[d].kind == examples.size()) examples.push_back(d);
  return examples;
}

/// Microbatches that a stage keeps, and of which it keeps a part until their W, where a pipeline
/// has `most_stages` at most: exactly under GPipe and 1F1B, at most under zero-bubble H1.
std::pair<std::uint32_t, std::uint32_t> held(ScheduleKind schedule,
                                             const WorkerStageShape& stage,
                                             std::uint32_t most_stages) {
  if (schedule == ScheduleKind::gpipe) return {stage.in_flight, 0};
  if (schedule == ScheduleKind::zero_bubble_h1)
    return {std::min(stage.in_flight, most_stages),
            std::min(stage.in_flight, most_stages - stage.after)};
  return {std::min(stage.in_flight, stage.after + 1), 0};
}

/// Bytes of a worker's stage in the device's arena, with the buffers at its edges (edge_buffers).
/// The request must outlive the result.
auto stage_bytes(const PlanRequest& request, ScheduleKind schedule, std::uint32_t most_stages) {
  const bool copies = request.cluster.copy_between_devices;
  return [pricer = std::make_shared<Pricer>(request.model, request.cluster, request.profile,
                                            request.options),
          slots = request.options.transfer_slots, tied = request.model.tied, copies, schedule,
          most_stages](const WorkerStageShape& stage) {
    const auto [kept, deferred] = held(schedule, stage, most_stages);
    const bool begins = stage.first == 0, ends = stage.last == pricer->layers();
    const std::uint32_t buffers =
        (begins ? 0 : 2 * slots) + (!ends && (stage.next_far || copies) ? slots : 0);
    return static_cast<double>(pricer->bytes_held(kept, deferred, stage.first, stage.last) +
                               buffers * pricer->boundary() +
                               (tied && begins != ends ? pricer->table() : 0));
  };
}

WorkerCosts worker_costs(const PlanRequest& request, const std::vector<std::uint32_t>& examples) {
  WorkerCosts costs;
  costs.seconds.resize(examples.size());
  for (std::uint32_t l = 0; l < layer_count(request.model); ++l) {
    const LayerProfile& kept = request.profile.layer(request.model, l);
    const LayerProfile layer = recomputed(
        kept, kept.kind == LayerKind::block ? request.options.recompute : Recompute::none);
    costs.layers.push_back(
        {static_cast<double>(layer.weight_bytes + layer.gradient_bytes + layer.optimizer_bytes),
         static_cast<double>(layer.gradient_bytes), static_cast<double>(layer.saved_bytes),
         static_cast<double>(layer.output_bytes)});
    for (std::size_t kind = 0; kind < examples.size(); ++kind) {
      const LayerSeconds one = layer_seconds(request.cluster.devices[examples[kind]], layer,
                                             request.options.shape.compute);
      costs.seconds[kind].push_back(one.forward + one.backward_input + one.backward_weight);
    }
  }
  return costs;
}

std::vector<StagePlan> stages_of(const PlanRequest& request, const VirtualWorker& worker) {
  std::vector<StagePlan> stages;
  for (const WorkerStage& stage : worker.stages) {
    const LayerRange layers{stage.first, stage.last};
    stages.push_back({layers, DeviceId{stage.device},
                      recompute_all(request.model, layers, request.options.recompute)});
  }
  return stages;
}

/// The stages with the least slowest one on these devices that fit as the schedule has them.
Result<VirtualWorker> least_slowest(const PlanRequest& request,
                                    const std::vector<std::uint32_t>& members) {
  constexpr std::uint32_t most_counts = 24;
  const WorkerCluster cluster = worker_cluster(request.cluster);
  const std::vector<std::uint32_t> examples = examples_of(cluster);
  WorkerCosts costs = worker_costs(request, examples);
  const ScheduleKind schedule = request.options.schedule;
  const auto most =
      std::min(static_cast<std::uint32_t>(members.size()), layer_count(request.model));
  // Under zero-bubble H1 all stages keep more the more there are, so every number is tried.
  const std::uint32_t by = (most + most_counts - 1) / most_counts;
  std::optional<Result<VirtualWorker>> best;
  for (std::uint32_t stages = most; stages > 0; stages -= std::min(by, stages)) {
    costs.stage_bytes = stage_bytes(request, schedule, stages);
    auto worker =
        split_worker(cluster, costs, members, request.options.shape.microbatch_count, stages);
    if (!best || (worker && (!*best || worker->slowest < (*best)->slowest))) best = worker;
    if (schedule != ScheduleKind::zero_bubble_h1) break;
  }
  return *best;
}

StrategyOutcome edgepipe(const PlanRequest& request) {
  if (request.options.schedule == ScheduleKind::interleaved)
    return refused(Strategy::edgepipe, one_stage_each(Strategy::edgepipe));
  std::vector<std::uint32_t> all(request.cluster.devices.size());
  std::iota(all.begin(), all.end(), 0u);
  const auto worker = least_slowest(request, all);
  if (!worker) return refused(Strategy::edgepipe, worker.error());
  return pinned(Strategy::edgepipe, request, stages_of(request, *worker),
                "the least slowest stage");
}

/// Peak bytes of a worker's device by its memory.
double memory_share(const WorkerCluster& cluster,
                    const WorkerCosts& costs,
                    const VirtualWorker& worker,
                    std::size_t s) {
  const WorkerStage& stage = worker.stages[s];
  const WorkerDevice& device = cluster.devices[stage.device];
  const bool last = s + 1 == worker.stages.size();
  const bool far = !last && cluster.devices[worker.stages[s + 1].device].node != device.node;
  const auto after = static_cast<std::uint32_t>(worker.stages.size() - s - 1);
  return costs.stage_bytes({stage.first, stage.last, after, worker.in_flight, far}) /
         device.memory_bytes;
}

/// What a worker takes for its share of the step, played as 1F1B with its microbatches in flight.
Seconds played(const PlanRequest& request, const VirtualWorker& worker) {
  const StepCosts costs = step_costs(stages_of(request, worker), request.cluster, request.model,
                                     request.profile, request.options.shape.compute);
  return one_f_one_b_seconds(costs, worker.share, request.options.transfer_slots,
                             request.model.tied, worker.in_flight);
}

/// Workers side by side, by the clock of their slowest.
StrategyOutcome side_by_side(const PlanRequest& request,
                             const WorkerCluster& cluster,
                             const WorkerCosts& costs,
                             WorkerPlan workers) {
  StrategyOutcome outcome;
  outcome.strategy = Strategy::hetpipe;
  for (const VirtualWorker& worker : workers.workers)
    if (worker.share > 0) outcome.step = std::max(outcome.step, played(request, worker));
  outcome.step += workers.synchronise;
  std::vector<DeviceMeasure> uses;
  for (const VirtualWorker& worker : workers.workers) {
    if (worker.share == 0) continue;
    for (std::size_t s = 0; s < worker.stages.size(); ++s) {
      const WorkerStage& stage = worker.stages[s];
      const auto& seconds = costs.seconds[cluster.devices[stage.device].kind];
      uses.push_back({DeviceId{stage.device},
                      worker.share * std::accumulate(seconds.begin() + stage.first,
                                                     seconds.begin() + stage.last, 0.0),
                      memory_share(cluster, costs, worker, s)});
    }
  }
  set_measures(outcome, uses);
  outcome.workers = std::move(workers);
  return outcome;
}

/// One worker is a pipeline like any other: it has the schedule's microbatches in flight, and is
/// simulated, filling and draining included.
StrategyOutcome one_worker(const PlanRequest& request, const VirtualWorker& worker) {
  if (request.options.schedule == ScheduleKind::interleaved)
    return refused(Strategy::hetpipe, one_stage_each(Strategy::hetpipe));
  std::vector<std::uint32_t> members = worker.unused;
  for (const WorkerStage& stage : worker.stages) members.push_back(stage.device);
  std::sort(members.begin(), members.end());
  const auto split = least_slowest(request, members);
  if (!split) return refused(Strategy::hetpipe, split.error());
  return pinned(Strategy::hetpipe, request, stages_of(request, *split),
                "one virtual worker: the least slowest stage");
}

StrategyOutcome hetpipe(const PlanRequest& request) {
  const WorkerCluster cluster = worker_cluster(request.cluster);
  const std::vector<std::uint32_t> examples = examples_of(cluster);
  WorkerCosts costs = worker_costs(request, examples);
  costs.stage_bytes = stage_bytes(request, ScheduleKind::one_f_one_b, layer_count(request.model));
  std::optional<StrategyOutcome> best;
  for (std::size_t i = 0; i < worker_allocation_count; ++i) {
    auto workers = plan_workers(cluster, costs, static_cast<WorkerAllocation>(i),
                                request.options.shape.microbatch_count);
    StrategyOutcome outcome;
    if (!workers) {
      outcome = refused(Strategy::hetpipe, workers.error());
    } else {
      const auto works = [](const VirtualWorker& worker) { return worker.share > 0; };
      const auto& all = workers->workers;
      const auto first = std::find_if(all.begin(), all.end(), works);
      const bool alone = std::none_of(std::next(first), all.end(), works);
      outcome = alone ? one_worker(request, *first)
                      : side_by_side(request, cluster, costs, std::move(*workers));
    }
    if (!best || (!outcome.refused && (best->refused || outcome.step < best->step)) ||
        (outcome.refused && best->refused))
      best = std::move(outcome);
  }
  return std::move(*best);
}

}  // namespace

std::string_view to_string(Strategy strategy) {
  for (const Named& one : names)
    if (one.strategy == strategy) return one.name;
  return "unknown";
}

Result<Strategy> parse_strategy(std::string_view text) {
  std::string known;
  for (const Named& one : names) {
    if (one.name == text) return one.strategy;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", one.name);
  }
  return Error{ErrorCode::invalid_input,
               fmt::format("there is no strategy \"{}\"; there are {}", text, known)};
}

void set_measures(StrategyOutcome& outcome, const std::vector<DeviceMeasure>& uses) {
  Seconds all = 0;
  for (const DeviceMeasure& use : uses) {
    all += use.busy;
    if (use.busy > outcome.slowest_busy) {
      outcome.slowest_busy = use.busy;
      outcome.slowest = use.device;
    }
    if (use.memory_share > outcome.memory_share) {
      outcome.memory_share = use.memory_share;
      outcome.fullest = use.device;
    }
  }
  outcome.devices_used = static_cast<std::uint32_t>(uses.size());
  outcome.bubble = 1 - all / std::max(outcome.devices_used * outcome.step, 1e-300);
}

StrategyOutcome measured_outcome(Strategy strategy, Plan plan, const ClusterSpec& cluster) {
  StrategyOutcome outcome;
  outcome.strategy = strategy;
  outcome.step = plan.predicted_step;
  const std::vector<Seconds> busy = busy_of_devices(plan);
  std::vector<bool> used(cluster.devices.size(), true);
  for (const DeviceId device : plan.unused) used[device.index()] = false;
  std::vector<DeviceMeasure> uses;
  for (std::uint32_t d = 0; d < used.size(); ++d)
    if (used[d])
      uses.push_back({DeviceId{d}, busy[d],
                      static_cast<double>(plan.memory[d].total()) /
                          static_cast<double>(cluster.devices[d].memory)});
  set_measures(outcome, uses);
  outcome.plan = std::move(plan);
  return outcome;
}

StrategyOutcome run_strategy(Strategy strategy,
                             const PlanRequest& request,
                             const std::vector<StrategyOutcome>& known) {
  PlanOptions options = request.options;
  if (strategy != Strategy::configured) options.pinned.clear();
  const PlanRequest open{request.model, request.cluster, request.profile, options,
                         request.profile_at};
  if (const Status status = check_request(open.model, open.cluster, options); !status)
    return refused(strategy, status.error());
  switch (strategy) {
    case Strategy::even: return even(open);
    case Strategy::edgepipe: return edgepipe(open);
    case Strategy::hetpipe: return hetpipe(open);
    case Strategy::memory_balanced: return memory_balanced(open);
    case Strategy::zebra: return zebra_outcome(open);
    case Strategy::expert_parallel: return expert_parallel_outcome(open);
    case Strategy::automatic: return automatic_outcome(open, known);
    case Strategy::configured: break;
  }
  auto plan = make_plan(open.model, open.cluster, open.profile, options, open.profile_at);
  if (!plan) return refused(strategy, plan.error());
  return measured_outcome(strategy, std::move(*plan), open.cluster);
}

}  // namespace troupe
