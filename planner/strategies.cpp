#include "planner/strategies.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "planner/balanced_memory.h"
#include "planner/device_kinds.h"
#include "planner/memory.h"
#include "planner/overflow.h"
#include "planner/plan_checks.h"
#include "planner/plan_measures.h"
#include "planner/stage_memory.h"
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
    {Strategy::zebra, "zebra"},     {Strategy::automatic, "auto"}};

StrategyOutcome refused(Strategy strategy, Error error) {
  StrategyOutcome outcome;
  outcome.strategy = strategy;
  outcome.refused = std::move(error);
  return outcome;
}

/// A plan of these stages, or why not.
StrategyOutcome pinned(Strategy strategy,
                       const PlanRequest& request,
                       std::vector<StagePlan> stages,
                       const std::string& how) {
  PlanOptions options = request.options;
  options.pinned = std::move(stages);
  auto plan =
      make_plan(request.model, request.cluster, request.profile, options, request.profile_at);
  if (!plan) return refused(strategy, plan.error());
  for (std::string& note : plan->notes)
    if (note == "stages: pinned by the configuration") note = "stages: " + how;
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
    return refused(Strategy::memory_balanced,
                   {ErrorCode::invalid_input,
                    "memory-balanced gives a device one stage, and the schedule is interleaved; "
                    "nearest: schedule = \"1f1b\""});
  const std::vector<StagePlan> stages = balanced_memory_stages(request);
  StrategyOutcome outcome = pinned(Strategy::memory_balanced, request, stages,
                                   "the fullest device is filled least, roomy devices first");
  if (!outcome.refused || request.options.schedule != ScheduleKind::one_f_one_b) return outcome;
  if (const auto shipped = ship_overflow(stages, request))
    outcome.refused->text += fmt::format(
        "; with activations shipped to where there is room it would fit ({}; {} of the step is not "
        "hidden), which is priced only",
        to_text(*shipped, stages, request.cluster), format_seconds(shipped->exposed));
  return outcome;
}

// ---- virtual workers ----

/// What every device keeps beside its layers' own bytes: workspace, buffers at its edges and the
/// inputs of its stage in flight, at most.
Bytes bytes_beside(const PlanRequest& request) {
  const ModelProfile& profile = request.profile;
  Bytes workspace = 0;
  for (const LayerProfile* layer : {&profile.embedding, &profile.block, &profile.head})
    workspace = std::max({workspace, layer->forward_workspace_bytes,
                          layer->backward_workspace_bytes, layer->update_workspace_bytes});
  const std::size_t in_flight =
      std::min<std::size_t>({request.cluster.devices.size(), layer_count(request.model),
                             request.options.shape.microbatch_count});
  return workspace +
         (in_flight + 3 * Bytes{request.options.transfer_slots}) * boundary_bytes(profile) +
         (request.model.tied ? token_table_bytes(request.model) : 0);
}

WorkerCluster worker_cluster(const PlanRequest& request, std::vector<std::uint32_t>& examples) {
  WorkerCluster made;
  made.within_node = request.cluster.same_process;
  made.between_nodes = request.cluster.between_processes;
  const auto kinds = device_kinds(request.cluster);
  const auto beside = static_cast<double>(bytes_beside(request));
  for (std::uint32_t d = 0; d < kinds.size(); ++d) {
    if (kinds[d] == examples.size()) examples.push_back(d);
    const DeviceSpec& device = request.cluster.devices[d];
    made.devices.push_back(
        {kinds[d], device.node, std::max(static_cast<double>(device.memory) - beside, 0.0)});
  }
  return made;
}

WorkerCosts worker_costs(const PlanRequest& request, const std::vector<std::uint32_t>& examples) {
  WorkerCosts costs;
  costs.seconds.resize(examples.size());
  for (std::uint32_t l = 0; l < layer_count(request.model); ++l) {
    const LayerProfile& layer = request.profile.of(layer_kind(request.model, l));
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

std::vector<StagePlan> stages_of(const VirtualWorker& worker) {
  std::vector<StagePlan> stages;
  for (const WorkerStage& stage : worker.stages)
    stages.push_back({{stage.first, stage.last}, DeviceId{stage.device}});
  return stages;
}

StrategyOutcome edgepipe(const PlanRequest& request) {
  if (request.options.schedule == ScheduleKind::interleaved)
    return refused(Strategy::edgepipe,
                   {ErrorCode::invalid_input,
                    "edgepipe gives a device one stage, and the schedule is interleaved; nearest: "
                    "schedule = \"1f1b\""});
  std::vector<std::uint32_t> examples;
  const WorkerCluster cluster = worker_cluster(request, examples);
  std::vector<std::uint32_t> all(cluster.devices.size());
  std::iota(all.begin(), all.end(), 0u);
  const std::uint32_t in_flight =
      request.options.schedule == ScheduleKind::gpipe
          ? request.options.shape.microbatch_count
          : std::min(request.options.shape.microbatch_count,
                     std::min(static_cast<std::uint32_t>(all.size()), layer_count(request.model)));
  const auto worker = split_worker(cluster, worker_costs(request, examples), all, in_flight);
  if (!worker) return refused(Strategy::edgepipe, worker.error());
  return pinned(Strategy::edgepipe, request, stages_of(*worker), "the least slowest stage");
}

/// Peak bytes of a worker's device by its memory.
double memory_share(const PlanRequest& request, const VirtualWorker& worker, std::size_t s) {
  const WorkerStage& stage = worker.stages[s];
  const auto after = static_cast<std::uint32_t>(worker.stages.size() - s);
  const Bytes bytes = stage_memory(request.model, request.profile, {stage.first, stage.last},
                                   std::min(worker.in_flight, after), 0)
                          .total() +
                      3 * Bytes{request.options.transfer_slots} * boundary_bytes(request.profile);
  return static_cast<double>(bytes) /
         static_cast<double>(request.cluster.devices[stage.device].memory);
}

StrategyOutcome hetpipe(const PlanRequest& request) {
  std::vector<std::uint32_t> examples;
  const WorkerCluster cluster = worker_cluster(request, examples);
  const WorkerCosts costs = worker_costs(request, examples);
  auto workers = best_workers(cluster, costs, request.options.shape.microbatch_count);
  if (!workers) return refused(Strategy::hetpipe, workers.error());
  // One worker is a pipeline like any other: simulated, filling and draining included.
  const auto idle = [](const VirtualWorker& worker) { return worker.share == 0; };
  const auto& all = workers->workers;
  if (std::count_if(all.begin(), all.end(), idle) + 1 == std::ssize(all))
    return pinned(Strategy::hetpipe, request,
                  stages_of(*std::find_if_not(all.begin(), all.end(), idle)),
                  "one virtual worker: the least slowest stage");
  StrategyOutcome outcome;
  outcome.strategy = Strategy::hetpipe;
  outcome.step = workers->step;
  Seconds busy = 0;
  for (const VirtualWorker& worker : workers->workers) {
    if (worker.share == 0) continue;
    for (std::size_t s = 0; s < worker.stages.size(); ++s) {
      const WorkerStage& stage = worker.stages[s];
      const auto& seconds = costs.seconds[cluster.devices[stage.device].kind];
      const Seconds own = worker.share * std::accumulate(seconds.begin() + stage.first,
                                                         seconds.begin() + stage.last, 0.0);
      busy += own;
      ++outcome.devices_used;
      outcome.memory_share = std::max(outcome.memory_share, memory_share(request, worker, s));
      if (own <= outcome.slowest_busy) continue;
      outcome.slowest_busy = own;
      outcome.slowest = DeviceId{stage.device};
    }
  }
  outcome.bubble = 1 - busy / std::max(outcome.devices_used * outcome.step, 1e-300);
  outcome.workers = std::move(*workers);
  return outcome;
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

StrategyOutcome measured_outcome(Strategy strategy, Plan plan, const ClusterSpec& cluster) {
  StrategyOutcome outcome;
  outcome.strategy = strategy;
  outcome.step = plan.predicted_step;
  const std::vector<Seconds> busy = busy_of_devices(plan);
  for (std::uint32_t d = 0; d < busy.size(); ++d)
    if (busy[d] > outcome.slowest_busy) {
      outcome.slowest_busy = busy[d];
      outcome.slowest = DeviceId{d};
    }
  outcome.devices_used = static_cast<std::uint32_t>(cluster.devices.size() - plan.unused.size());
  outcome.bubble = 1 - std::accumulate(busy.begin(), busy.end(), 0.0) /
                           std::max(outcome.devices_used * outcome.step, 1e-300);
  for (std::size_t d = 0; d < plan.memory.size(); ++d)
    outcome.memory_share =
        std::max(outcome.memory_share, static_cast<double>(plan.memory[d].total()) /
                                           static_cast<double>(cluster.devices[d].memory));
  outcome.plan = std::move(plan);
  return outcome;
}

StrategyOutcome run_strategy(Strategy strategy, const PlanRequest& request) {
  PlanOptions options = request.options;
  options.pinned.clear();
  const PlanRequest open{request.model, request.cluster, request.profile, options,
                         request.profile_at};
  if (const Status status = check_request(open.model, open.cluster, options); !status)
    return refused(strategy, status.error());
  switch (strategy) {
    case Strategy::even: return even(open);
    case Strategy::edgepipe: return edgepipe(open);
    case Strategy::hetpipe: return hetpipe(open);
    case Strategy::memory_balanced: return memory_balanced(open);
    case Strategy::zebra:
      return refused(strategy, {ErrorCode::invalid_input,
                                "the model has no experts, so that nothing but attention would be "
                                "left for the devices of either side; nearest: auto"});
    case Strategy::automatic: break;
  }
  auto plan = make_plan(open.model, open.cluster, open.profile, options, open.profile_at);
  if (!plan) return refused(strategy, plan.error());
  return measured_outcome(strategy, std::move(*plan), open.cluster);
}

}  // namespace troupe
