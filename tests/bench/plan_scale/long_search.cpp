#include "tests/bench/plan_scale/long_search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>

#include "planner/memory.h"
#include "planner/pipeline_time.h"
#include "planner/stage_memory.h"
#include "planner/step_costs.h"

namespace troupe::bench {
namespace {

constexpr Seconds never = std::numeric_limits<Seconds>::infinity();

class Annealer {
 public:
  Annealer(const ModelSpec& model,
           const ClusterSpec& cluster,
           const ModelProfile& profile,
           const PlanOptions& options,
           std::uint32_t seed)
      : model_(model), cluster_(cluster), profile_(profile), options_(options), random_(seed) {}

  LongSearch run(const std::vector<StagePlan>& known, double seconds) {
    begin_ = std::chrono::steady_clock::now();
    best_.step = never;
    const double each = seconds / rounds;
    for (int round = 0; round < rounds; ++round)
      anneal(round % 2 == 1 && !known.empty() ? known : random_start(), each * (round + 1));
    return best_;
  }

 private:
  static constexpr int rounds = 8;

  double elapsed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  std::uint32_t pick(std::size_t count) {
    return std::uniform_int_distribution<std::uint32_t>(
        0, static_cast<std::uint32_t>(count) - 1)(random_);
  }

  std::vector<StagePlan> random_start() {
    const std::uint32_t layers = layer_count(model_);
    std::vector<std::uint32_t> devices(cluster_.devices.size());
    for (std::uint32_t d = 0; d < devices.size(); ++d) devices[d] = d;
    std::shuffle(devices.begin(), devices.end(), random_);
    const std::uint32_t count = 1 + pick(std::min<std::size_t>(devices.size(), layers));
    std::vector<StagePlan> stages;
    for (std::uint32_t s = 0; s < count; ++s)
      stages.push_back({{s * layers / count, (s + 1) * layers / count}, DeviceId{devices[s]}});
    return stages;
  }

  /// Seconds of the step; where it does not fit, a penalty that falls with the bytes over.
  Seconds cost(const std::vector<StagePlan>& stages) {
    ++best_.tried;
    StageMap map;
    map.tied = model_.tied;
    map.transfer_slots = options_.transfer_slots;
    for (const StagePlan& stage : stages) map.device_of_stage.push_back(stage.device);
    double over = 0;
    for (std::uint32_t s = 0; s < stages.size(); ++s) {
      const auto flight = std::min<std::uint32_t>(static_cast<std::uint32_t>(stages.size()) - s,
                                                  options_.shape.microbatch_count);
      const Bytes bytes = stage_memory(model_, profile_, stages[s].layers, flight, 0).total() +
                          edge_bytes(edge_buffers(StageId{s}, map, cluster_), model_, profile_);
      const Bytes room = cluster_.devices[stages[s].device.index()].memory;
      if (bytes > room) over += static_cast<double>(bytes - room) / static_cast<double>(room);
    }
    const StepCosts costs = step_costs(stages, cluster_, model_, profile_, options_.shape.compute);
    const Seconds step = one_f_one_b_seconds(costs, options_.shape.microbatch_count,
                                             options_.transfer_slots, model_.tied);
    if (over > 0) return step * (1 + over);
    if (step < best_.step) {
      best_.step = step;
      best_.stages = stages;
    }
    return step;
  }

  std::uint32_t free_device(const std::vector<StagePlan>& stages) {
    for (;;) {
      const std::uint32_t d = pick(cluster_.devices.size());
      if (std::none_of(stages.begin(), stages.end(),
                       [&](const StagePlan& stage) { return stage.device == DeviceId{d}; }))
        return d;
    }
  }

  bool move(std::vector<StagePlan>& stages) {
    const std::size_t s = pick(stages.size());
    const bool some_free = stages.size() < cluster_.devices.size();
    switch (pick(6)) {
      case 0:
      case 1: return shift(stages, s, pick(stages.size()));
      case 2: std::swap(stages[s].device, stages[pick(stages.size())].device); return true;
      case 3:
        if (!some_free) return false;
        stages[s].device = DeviceId{free_device(stages)};
        return true;
      case 4: {
        if (!some_free || stages[s].layers.size() < 2) return false;
        StagePlan second{stages[s].layers, DeviceId{free_device(stages)}};
        second.layers.first += 1 + pick(second.layers.size() - 1);
        stages[s].layers.last = second.layers.first;
        stages.insert(stages.begin() + static_cast<std::ptrdiff_t>(s) + 1, second);
        return true;
      }
      default: {
        if (stages.size() < 2) return false;
        if (s > 0)
          stages[s - 1].layers.last = stages[s].layers.last;
        else
          stages[1].layers.first = 0;
        stages.erase(stages.begin() + static_cast<std::ptrdiff_t>(s));
        return true;
      }
    }
  }

  /// A layer from stage s to stage t.
  static bool shift(std::vector<StagePlan>& stages, std::size_t s, std::size_t t) {
    if (s == t || stages[s].layers.size() < 2) return false;
    const bool up = s < t;
    for (std::size_t i = std::min(s, t); i < std::max(s, t); ++i) {
      const std::uint32_t cut = stages[i].layers.last + (up ? ~0u : 1u);
      stages[i].layers.last = cut;
      stages[i + 1].layers.first = cut;
    }
    return true;
  }

  void anneal(std::vector<StagePlan> now, double until) {
    Seconds now_cost = cost(now);
    const double from = elapsed();
    while (elapsed() < until) {
      const double done = (elapsed() - from) / std::max(until - from, 1e-9);
      const double temperature = 0.05 * std::pow(1e-4, done);
      for (int i = 0; i < 64; ++i) {
        std::vector<StagePlan> next = now;
        if (!move(next)) continue;
        const Seconds next_cost = cost(next);
        const double worse = (next_cost - now_cost) / now_cost;
        if (worse > 0 &&
            std::uniform_real_distribution<>(0, 1)(random_) >= std::exp(-worse / temperature))
          continue;
        now = std::move(next);
        now_cost = next_cost;
      }
    }
  }

  const ModelSpec& model_;
  const ClusterSpec& cluster_;
  const ModelProfile& profile_;
  const PlanOptions& options_;
  std::mt19937 random_;
  LongSearch best_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace

LongSearch anneal(const ModelSpec& model,
                  const ClusterSpec& cluster,
                  const ModelProfile& profile,
                  const PlanOptions& options,
                  const std::vector<StagePlan>& known,
                  double seconds,
                  std::uint32_t seed) {
  return Annealer(model, cluster, profile, options, seed).run(known, seconds);
}

}  // namespace troupe::bench
