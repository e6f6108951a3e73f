#include "planner/pricer.h"

#include <algorithm>
#include <limits>

#include "planner/device_kinds.h"
#include "planner/memory.h"
#include "planner/pipeline_time.h"
#include "planner/schedules.h"
#include "planner/stage_memory.h"
#include "planner/step_costs.h"

namespace troupe {
Pricer::Pricer(const ModelSpec& model,
               const ClusterSpec& cluster,
               const ModelProfile& profile,
               const PlanOptions& options)
    : model_(model),
      cluster_(cluster),
      profile_(profile),
      options_(options),
      chunks_(options.schedule == ScheduleKind::interleaved ? std::max(options.chunks, 1u) : 1),
      device_kind_(device_kinds(cluster)) {
  for (std::uint32_t d = 0; d < device_kind_.size(); ++d)
    if (device_kind_[d] == kind_example_.size()) kind_example_.push_back(d);
  seconds_.resize(kind_example_.size());
  const std::uint32_t all = layers();
  if (!profile.blocks.empty()) {
    for (std::uint32_t first = 0; first <= all; ++first)
      for (std::uint32_t last = 0; last <= all; ++last)
        add_entry(first < last ? LayerRange{first, last} : LayerRange{});
    return;
  }
  for (const bool from_start : {false, true})
    for (const bool to_end : {false, true})
      for (std::uint32_t size = 0; size <= all; ++size) {
        LayerRange range{from_start ? 0u : 1u, 0};
        range.last = range.first + size;
        if (to_end) range = {all - size, all};
        // Shapes that cannot be keep an empty entry.
        const bool possible = size > 0 && range.last <= all && (range.first == 0) == from_start &&
                              (range.last == all) == to_end;
        add_entry(possible ? range : LayerRange{});
      }
}

void Pricer::add_entry(LayerRange range) {
  const StageRecompute again = recompute_all(model_, range, options_.recompute);
  const auto memory = [&](std::uint32_t in_flight, std::uint32_t deferred) {
    return stage_memory(model_, profile_, range, in_flight, deferred, again);
  };
  const MemoryPlan none = memory(0, 0);
  bytes_.push_back({none.weights + none.gradients + none.optimizer, memory(1, 0).activations,
                    memory(0, 1).activations, none.workspace});
  for (std::size_t kind = 0; kind < kind_example_.size(); ++kind)
    seconds_[kind].push_back(stage_seconds(cluster_.devices[kind_example_[kind]], model_, profile_,
                                           range, options_.shape.compute, again));
}

std::size_t Pricer::entry(std::uint32_t first, std::uint32_t last) const {
  const std::size_t all = layers();
  if (!profile_.blocks.empty()) return first * (all + 1) + last;
  const std::size_t shape = (first == 0 ? 2u : 0u) + (last == all ? 1u : 0u);
  return shape * (all + 1) + (last - first);
}

const Pricer::StageBytes& Pricer::stage_table(std::uint32_t first, std::uint32_t last) const {
  return bytes_[entry(first, last)];
}

const LayerSeconds& Pricer::seconds_table(std::uint32_t device,
                                          std::uint32_t first,
                                          std::uint32_t last) const {
  return seconds_[device_kind_[device]][entry(first, last)];
}

Seconds Pricer::busy(std::uint32_t device, std::uint32_t first, std::uint32_t last) const {
  const LayerSeconds& s = seconds_table(device, first, last);
  const Seconds overhead = cluster_.devices[device].rates.action_overhead;
  const double actions = options_.schedule == ScheduleKind::zero_bubble_h1 ? 3 : 2;
  return options_.shape.microbatch_count *
             (s.forward + s.backward_input + s.backward_weight + actions * overhead) +
         s.norm + s.update + 2 * overhead;
}

Pricer::Pipeline& Pricer::pipeline(std::uint32_t devices) const {
  Pipeline& made = pipelines_[devices];
  if (made.run) return made;
  StageMap map;
  for (std::uint32_t s = 0; s < devices * chunks_; ++s)
    map.device_of_stage.push_back(DeviceId{s % devices});
  map.microbatch_count = options_.shape.microbatch_count;
  map.device_count = devices;
  map.tied = model_.tied;
  map.transfer_slots = options_.transfer_slots;
  auto schedule = make_schedule(options_.schedule, map);
  EXPECTS(schedule.ok());
  made.schedule = std::move(*schedule);
  made.in_flight = in_flight_per_stage(made.schedule);
  made.deferred = deferred_per_stage(made.schedule);
  made.run = std::make_unique<ScheduleRun>(made.schedule);
  return made;
}

std::vector<Bytes> Pricer::edge_bytes_of(const std::vector<std::uint32_t>& order) const {
  StageMap map;
  map.tied = model_.tied;
  map.transfer_slots = options_.transfer_slots;
  for (std::size_t s = 0; s < order.size() * chunks_; ++s)
    map.device_of_stage.push_back(DeviceId{order[s % order.size()]});
  std::vector<Bytes> bytes;
  for (std::uint32_t s = 0; s < map.stage_count(); ++s)
    bytes.push_back(edge_bytes(edge_buffers(StageId{s}, map, cluster_), model_, profile_));
  return bytes;
}

Bytes Pricer::stage_bytes(std::uint32_t devices,
                          std::uint32_t stage,
                          std::uint32_t first,
                          std::uint32_t last) const {
  return stage_bytes_function(devices, stage)(first, last);
}

Pricer::Fit Pricer::fit(const Candidate& candidate) const {
  Fit worst;
  worst.over = std::numeric_limits<std::int64_t>::min();
  const auto devices = static_cast<std::uint32_t>(candidate.order.size());
  const auto edges = edge_bytes_of(candidate.order);
  for (std::uint32_t i = 0; i < devices; ++i) {
    Bytes needed = 0;
    Bytes workspace = 0;
    for (std::uint32_t s = i; s < candidate.stage_count(); s += devices) {
      const std::uint32_t first = candidate.cuts[s];
      const std::uint32_t last = candidate.cuts[s + 1];
      const Bytes own = stage_table(first, last).workspace;
      needed += stage_bytes(devices, s, first, last) + edges[s] - own;
      workspace = std::max(workspace, own);
    }
    needed += workspace;
    const std::uint32_t device = candidate.order[i];
    const auto over = static_cast<std::int64_t>(needed) -
                      static_cast<std::int64_t>(cluster_.devices[device].memory);
    if (over > worst.over) worst = {over, device, needed};
  }
  return worst;
}

Seconds Pricer::hop(const Candidate& candidate, std::uint32_t from, std::uint32_t to) const {
  const DeviceId a{candidate.device_of(from)};
  const DeviceId b{candidate.device_of(to)};
  return a == b ? 0.0 : transfer_seconds(cluster_.link(a, b), boundary_bytes(profile_));
}

Seconds Pricer::lower_bound(const Candidate& candidate) const {
  const bool split = options_.schedule == ScheduleKind::zero_bubble_h1;
  const auto devices = static_cast<std::uint32_t>(candidate.order.size());
  std::vector<Seconds> work(devices);  // by position in the order
  std::vector<Seconds> fill(devices);  // before its first F can start
  std::vector<Seconds> tail(devices);  // after its last B
  Seconds chain_forward = 0;
  Seconds chain_backward = 0;
  Seconds bound = 0;
  for (std::uint32_t s = 0; s < candidate.stage_count(); ++s) {
    const std::uint32_t device = candidate.device_of(s);
    const std::uint32_t first = candidate.cuts[s];
    const std::uint32_t last = candidate.cuts[s + 1];
    const Seconds overhead = cluster_.devices[device].rates.action_overhead;
    const LayerSeconds& seconds = seconds_table(device, first, last);
    if (s > 0) {
      chain_forward += hop(candidate, s - 1, s);
      chain_backward += hop(candidate, s, s - 1);
    }
    const std::uint32_t i = s % devices;
    if (s < devices) fill[i] = chain_forward;
    if (s < devices && !split) tail[i] = chain_backward;
    work[i] += busy(device, first, last);
    chain_forward += seconds.forward + overhead;
    chain_backward += seconds.backward_input + overhead + (split ? 0.0 : seconds.backward_weight);
  }
  for (std::uint32_t i = 0; i < devices; ++i) {
    // N and U of the device itself may run while the tail does.
    Seconds own_end = 0;
    for (std::uint32_t s = i; s < candidate.stage_count(); s += devices) {
      const LayerSeconds& seconds =
          seconds_table(candidate.order[i], candidate.cuts[s], candidate.cuts[s + 1]);
      own_end += seconds.norm + seconds.update +
                 2 * cluster_.devices[candidate.order[i]].rates.action_overhead;
    }
    bound = std::max(bound, fill[i] + work[i] - own_end + std::max(own_end, tail[i]));
  }
  return bound;
}

Bytes Pricer::boundary() const {
  return boundary_bytes(profile_);
}

Bytes Pricer::table() const {
  return token_table_bytes(model_);
}

StepCosts Pricer::costs_of(const Candidate& candidate) const {
  return step_costs(stages_of(candidate), cluster_, model_, profile_, options_.shape.compute);
}

Seconds Pricer::simulate(const Candidate& candidate) {
  if (options_.schedule == ScheduleKind::one_f_one_b)
    return one_f_one_b_seconds(costs_of(candidate), options_.shape.microbatch_count,
                               options_.transfer_slots, model_.tied);
  Pipeline& pipe = pipeline(static_cast<std::uint32_t>(candidate.order.size()));
  return simulated_seconds(*pipe.run, costs_of(candidate));
}

std::size_t Pricer::actions(const Candidate& candidate) const {
  return std::size_t{5} * candidate.stage_count() * (options_.shape.microbatch_count + 1);
}

std::vector<StagePlan> Pricer::stages_of(const Candidate& candidate) const {
  std::vector<StagePlan> stages;
  for (std::uint32_t s = 0; s < candidate.stage_count(); ++s) {
    const LayerRange layers{candidate.cuts[s], candidate.cuts[s + 1]};
    stages.push_back({layers, DeviceId{candidate.device_of(s)},
                      recompute_all(model_, layers, options_.recompute)});
  }
  return stages;
}

}  // namespace troupe
