/// Models with experts over unlike devices: zebra parallelism (planner/zebra.h) and plain expert
/// parallelism with unequal shares. Both are priced; neither trains yet.
///
/// Tokens are shared out in whole sequences, `round` of them at a time, whatever the configuration
/// says about microbatches; every size of round is tried (of large batches some). Times are those
/// of request.profile, linear in sequences, for the experts those of the round where
/// request.profile_at can say them. Dense state is replicated; its gradients go round a ring of the
/// devices that have them, over the slowest link, once a step, with nothing beside it.
#pragma once

#include "planner/strategies.h"

namespace troupe {

/// Kinds of device on two sides: attention and all that is dense on one, experts on the other, as
/// planner/zebra.h plays it, with experts moved where that helps. Every assignment of kinds to the
/// sides is tried. Refused: a model without experts, devices of one kind or of more than sixteen,
/// devices without rates, what does not fit (with a change that would: it was tried).
StrategyOutcome zebra_outcome(const PlanRequest& request);

/// Every device may have sequences and experts: those by its speed at what is dense, these by its
/// speed at experts, both within its memory. In each layer attention waits for the slowest, then
/// the exchange, then the slowest experts, then the exchange back. All shares are tried where there
/// are at most a few thousand; else shares by speed, more even ones down to equal, and what single
/// moves make of them. An expert is whole: no more devices have some than a layer has experts.
/// Refused as above, but one kind of device will do.
StrategyOutcome expert_parallel_outcome(const PlanRequest& request);

}  // namespace troupe
