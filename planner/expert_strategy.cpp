#include "planner/expert_strategy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "planner/counted.h"
#include "planner/expert_costs.h"

namespace troupe {
namespace {

using Search = std::optional<ExpertPlan> (*)(const PlanRequest&, const ExpertCosts&);

constexpr double kib = 1024;

StrategyOutcome refused(Strategy strategy, Error error) {
  StrategyOutcome outcome;
  outcome.strategy = strategy;
  outcome.refused = std::move(error);
  return outcome;
}

Error refuse(std::string text) {
  return {ErrorCode::invalid_input, std::move(text)};
}

/// Memory of every device by how much more of it there is.
ExpertCosts with_memory(ExpertCosts costs, double times) {
  for (double& memory : costs.memory) memory *= times;
  return costs;
}

struct Nearest {
  std::optional<ExpertPlan> plan;
  double times = 1;  ///< as much memory of every device
};

/// The plan within the least more memory, by the same factor everywhere.
Nearest nearest_plan(const PlanRequest& request, const ExpertCosts& costs, Search search) {
  constexpr double most = 1 << 20;
  constexpr int halvings = 6;
  Nearest out;
  while (!out.plan && out.times < most) {
    out.times *= 2;
    out.plan = search(request, with_memory(costs, out.times));
  }
  double short_of = out.times / 2;
  for (int halving = 0; out.plan && halving < halvings; ++halving) {
    const double middle = (out.times + short_of) / 2;
    if (auto closer = search(request, with_memory(costs, middle)))
      out = {std::move(closer), middle};
    else
      short_of = middle;
  }
  return out;
}

/// Memory of the devices that are short of it under the nearest plan, so much that a plan fits:
/// what that plan needs, or a little more, as a search within other bounds goes other ways; else
/// what every device had when it was found.
ExpertCosts enough_memory(const PlanRequest& request,
                          const ExpertCosts& costs,
                          Search search,
                          const Nearest& nearest) {
  const auto raised = [&](auto needed) {
    ExpertCosts out = costs;
    for (std::size_t d = 0; d < costs.devices(); ++d)
      out.memory[d] = std::max(costs.memory[d], kib * std::ceil(needed(d) / kib));
    return out;
  };
  for (const double more : {1.0, 1.02, 1.05, 1.1, 1.25}) {
    auto out = raised(
        [&](std::size_t d) { return more * static_cast<double>(nearest.plan->devices[d].bytes); });
    if (search(request, out)) return out;
  }
  return raised([&](std::size_t d) { return nearest.times * costs.memory[d]; });
}

/// The device that is furthest over its memory under the nearest plan, and how much memory would
/// do: it is tried.
Error does_not_fit(const PlanRequest& request, const ExpertCosts& costs, Search search) {
  const auto& devices = request.cluster.devices;
  const Nearest nearest = nearest_plan(request, costs, search);
  if (!nearest.plan)
    return {ErrorCode::does_not_fit,
            fmt::format("plan: does not fit: no memory of {} would hold what each must",
                        counted(devices.size(), "device"))};
  const auto over = [&](std::size_t d) {
    return static_cast<double>(nearest.plan->devices[d].bytes) - costs.memory[d];
  };
  const ExpertCosts enough = enough_memory(request, costs, search, nearest);
  std::string change;
  std::size_t worst = 0;
  for (std::size_t d = 0; d < devices.size(); ++d) {
    if (over(d) > over(worst)) worst = d;
    if (enough.memory[d] > costs.memory[d])
      change += fmt::format("{}{} at least {:.0f} KiB", change.empty() ? "" : ", ", devices[d].name,
                            enough.memory[d] / kib);
  }
  const Bytes needed = nearest.plan->devices[worst].bytes, free = devices[worst].memory;
  return {ErrorCode::does_not_fit,
          fmt::format("plan: does not fit: {} needs {} ({} bytes) and has {} ({} bytes), short by "
                      "{} bytes; memory of {} would fit",
                      devices[worst].name, format_bytes(needed), needed, format_bytes(free), free,
                      needed - free, change)};
}

StrategyOutcome planned(Strategy strategy,
                        const PlanRequest& request,
                        const ExpertCosts& costs,
                        Search search) {
  auto plan = search(request, costs);
  if (!plan) return refused(strategy, does_not_fit(request, costs, search));
  return expert_outcome(strategy, std::move(*plan), costs);
}

}  // namespace

StrategyOutcome zebra_outcome(const PlanRequest& request) {
  constexpr std::size_t most_kinds = 16;
  if (!request.profile.experts)
    return refused(Strategy::zebra,
                   refuse("the model has no experts, so that nothing but attention would be left "
                          "for the devices of either side; nearest: auto"));
  const auto costs = expert_costs(request);
  if (!costs) return refused(Strategy::zebra, costs.error());
  if (costs->kinds.size() < 2)
    return refused(Strategy::zebra,
                   refuse("zebra puts attention on one kind of device and experts on another, and "
                          "all devices are of one kind; nearest: expert-parallel"));
  if (costs->kinds.size() > most_kinds)
    return refused(Strategy::zebra,
                   refuse(fmt::format("zebra tries every way to put kinds of device on two sides, "
                                      "of {} at most, and there are {}; nearest: expert-parallel",
                                      most_kinds, costs->kinds.size())));
  return planned(Strategy::zebra, request, *costs, best_zebra);
}

StrategyOutcome expert_parallel_outcome(const PlanRequest& request) {
  if (!request.profile.experts)
    return refused(Strategy::expert_parallel,
                   refuse("the model has no experts to divide over the devices; nearest: auto"));
  const auto costs = expert_costs(request);
  if (!costs) return refused(Strategy::expert_parallel, costs.error());
  return planned(Strategy::expert_parallel, request, *costs, best_expert_parallel);
}

}  // namespace troupe
