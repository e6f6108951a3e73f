/// Proposes plans and keeps what steps took, so that the two can be compared. The arithmetic of
/// planning is planner/'s; the decision to adopt is the run actor's.
#include <algorithm>
#include <exception>
#include <map>

#include "actors/errors.h"
#include "actors/interfaces.h"

namespace troupe {
namespace {

struct PlannerState {
  PlannerState() {}
  static inline const char* name = "planner";
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
      [](const ProposePlan& order) -> caf::result<PlanProposed> {
        const PlanRequest& request = *order.request;
        try {
          auto plan = make_plan(request.model, request.cluster, request.profile, request.options,
                                request.profile_at);
          if (!plan) return to_caf(plan.error());
          plan->epoch = order.epoch;
          return PlanProposed{order.epoch, order.step,
                              std::make_shared<const Plan>(std::move(*plan))};
        } catch (const std::exception& thrown) {
          return to_caf(Error{ErrorCode::internal, std::string("planning: ") + thrown.what()});
        }
      },
      [&state](const StepObserved& seen) { state.observe(seen.row); },
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
