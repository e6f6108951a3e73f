/// A plan that is chosen with its microbatches, its schedule and what its blocks compute again:
/// what "auto" means for `training.microbatches`, `plan.schedule` and `plan.recompute`.
#pragma once

#include <vector>

#include "planner/plan.h"

namespace troupe {

/// Makes the plan of the options; where they leave something open (`choose_microbatches`,
/// `choose_schedule`, `choose_recompute`), that of the quickest choice, by predicted step time
/// among those that fit. Equally quick: fewer microbatches, then 1F1B, zero bubble H1, GPipe,
/// interleaved; then less that is computed again. Notes say what was chosen and what came second.
///
/// Microbatches are `tried_shapes`; schedules all kinds, interleaved with 2 to 4 chunks. A choice
/// is left out where `least_step` shows that it comes behind two others. On more than 40 devices
/// other schedules than 1F1B are planned with the three best shapes alone.
///
/// What blocks compute again: nothing; under 1F1B, and where stages are pinned, what each stage has
/// to; under the others one policy for all, from which stages with memory left then depart. A split
/// backward computes nothing again.
///
/// `profile` and the devices' measured times are of `options.shape`; with_microbatches
/// (planner/step_costs.h) makes those of others. Without `profile_at` the shape stays. Errors as
/// make_plan, of the choice that needs least memory.
Result<Plan> choose_plan(const ModelSpec& model,
                         const ClusterSpec& cluster,
                         const ModelProfile& profile,
                         const PlanOptions& options,
                         const ProfileAt& profile_at);

/// Every way to cut the batch of `given` into equal microbatches, the last of which may be smaller:
/// by rising count, at most `most_microbatches`; of each count the smallest size.
std::vector<StepShape> step_shapes(const StepShape& given);
/// Those that choose_plan tries: all, but where there are many those whose count or size is a power
/// of two, and the last.
std::vector<StepShape> tried_shapes(const StepShape& given);

/// No plan ends a step of this shape sooner, under any schedule: the work shared out so that all
/// devices end together (a bound from the dual of that linear program), and the way of one
/// microbatch through the fastest devices.
Seconds least_step(const ModelSpec& model,
                   const ClusterSpec& cluster,
                   const ModelProfile& profile,
                   const StepShape& shape);

/// Of the plan's notes, those on what was chosen and what came second; none where nothing was.
std::vector<std::string> choice_notes(const Plan& plan);

/// The options with what the plan chose in place of what they left open. Stages that compute unlike
/// things again leave that open, and `recompute` the most that one of them does.
PlanOptions settled(PlanOptions options, const Plan& plan);

}  // namespace troupe
