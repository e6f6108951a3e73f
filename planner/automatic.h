/// The strategy `auto`: the quickest of everything that can be priced.
#pragma once

#include "planner/strategies.h"

namespace troupe {

/// What the planner's own search trains with (planner/plan_choice.h), joint_plan, and every
/// strategy that places otherwise (hetpipe, experts apart): the quickest of them; of equally quick
/// ones the plan that trains. Errors: where nothing fits, as the plan that trains. `known` as in
/// run_strategy. Promise: the request was checked, nothing is pinned.
StrategyOutcome automatic_outcome(const PlanRequest& request,
                                  const std::vector<StrategyOutcome>& known);

/// The plan that trains, with its own choice of what the request leaves open; refused as
/// choose_plan.
StrategyOutcome trained_outcome(const PlanRequest& request);

/// The measures of a joint plan, by the rules of measured_outcome.
StrategyOutcome joint_outcome(JointPlan plan, const ClusterSpec& cluster);

/// "2 replicas; t4: 2 blocks compute again, optimizer in host memory": what a joint plan does that
/// does not train yet; empty: nothing.
std::string untrained_text(const JointPlan& plan, const ClusterSpec& cluster);

}  // namespace troupe
