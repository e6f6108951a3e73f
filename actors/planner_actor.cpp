/// Proposes plans and keeps what steps took, so that the two can be compared. The arithmetic of
/// planning is planner/'s; the decision to adopt is the run actor's.
#include <algorithm>
#include <exception>
#include <map>

#include "actors/errors.h"
#include "actors/interfaces.h"
#include "planner/plan_choice.h"
#include "planner/replan.h"
#include "planner/step_costs.h"

namespace troupe {
namespace {

/// The inputs with what the plan chose in place of what they left open.
OwnedPlanRequest settled_inputs(const OwnedPlanRequest& inputs, const Plan& plan) {
  OwnedPlanRequest out = inputs;
  if (plan.shape != inputs.options.shape) {
    out.profile = inputs.profile_at(plan.shape);
    out.cluster =
        with_microbatches(inputs.cluster, inputs.profile, out.profile, plan.shape.microbatch_size);
  }
  out.options = settled(inputs.options, plan);
  return out;
}

struct PlannerState {
  PlannerState() {}
  static inline const char* name = "planner";
  std::shared_ptr<const OwnedPlanRequest> inputs;  ///< of the plan proposed last
  std::shared_ptr<const Plan> proposed;
  bool first_seen = false;
  std::uint64_t steps = 0;
  Seconds seconds = 0;
  std::map<DeviceId, DeviceRow> devices;  ///< busy: sums

  void observe(const StepRow& row) {
    if (!std::exchange(first_seen, true)) return;
    ++steps;
    seconds += row.seconds;
    for (const DeviceRow& one : row.devices) {
      DeviceRow& sum = devices[one.device];
      sum.device = one.device;
      sum.busy += one.busy;
      sum.peak = std::max(sum.peak, one.peak);
      sum.allocations = one.allocations;
    }
  }
  /// What another plan would buy under a drift, for people; empty: nothing.
  std::string advice(const Drift& drift) const {
    if (!proposed) return {};
    const PlanRequest request{inputs->model, inputs->cluster, inputs->profile, inputs->options};
    const auto other = replan(*proposed, request, drift);
    return other ? to_text(*other, inputs->cluster) : std::string();
  }
  Observations means() const {
    Observations seen;
    seen.steps = steps;
    if (steps == 0) return seen;
    const auto count = static_cast<double>(steps);
    seen.step_seconds = seconds / count;
    for (const auto& [device, sum] : devices) {
      seen.devices.push_back(sum);
      seen.devices.back().busy /= count;
    }
    return seen;
  }
};

caf::behavior planner_actor(ActorOf<PlannerState>* self) {
  PlannerState& state = self->state;
  return {
      [&state](const ProposePlan& order) -> caf::result<PlanProposed> {
        const OwnedPlanRequest& request = *order.request;
        try {
          auto plan = choose_plan(request.model, request.cluster, request.profile, request.options,
                                  request.profile_at);
          if (!plan) return to_caf(plan.error());
          plan->epoch = order.epoch;
          state.inputs = std::make_shared<const OwnedPlanRequest>(settled_inputs(request, *plan));
          state.proposed = std::make_shared<const Plan>(std::move(*plan));
          return PlanProposed{order.epoch, order.step, state.proposed};
        } catch (const std::exception& thrown) {
          return to_caf(Error{ErrorCode::internal, std::string("planning: ") + thrown.what()});
        }
      },
      [&state](const StepObserved& seen) { state.observe(seen.row); },
      [self, &state](const DriftSeen& seen) {
        RunNews news;
        news.epoch = seen.epoch;
        news.step = seen.step;
        news.kind = RunNews::Kind::advice;
        news.text = state.advice(seen.drift);
        if (!news.text.empty()) self->send(seen.observer, std::move(news));
      },
      [&state](const NeedObservations& need) {
        return Observed{need.epoch, need.step, state.means()};
      },
  };
}

}  // namespace

caf::actor spawn_planner_actor(caf::actor_system& system) {
  // Planning may take a second.
  return system.spawn<caf::detached>(planner_actor);
}

}  // namespace troupe
