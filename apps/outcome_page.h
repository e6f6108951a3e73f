/// `troupe plan --strategy NAME --html`: what a strategy came to beside the plan that trains, on
/// one self-contained page.
#pragma once

#include <string>
#include <vector>

#include "apps/plan_page.h"
#include "planner/strategies.h"

namespace troupe {

/// The pipelines of an outcome, played: its plan, or each replica of a joint plan on its devices
/// under 1F1B with the times of its choices. Empty where an outcome has no schedule to play
/// (virtual workers, experts apart).
std::vector<PagePlan> outcome_pages(const StrategyOutcome& outcome, const PlanRequest& request);

/// The page: tables of the outcome, then its pipelines and those of `trained` with their timelines
/// and memory. `trained`: the plan that trains, or why there is none. `note`: a line at the top, if
/// not empty. Promise: `outcome` is not refused.
std::string outcome_page(const std::string& name,
                         const std::string& note,
                         const StrategyOutcome& outcome,
                         const StrategyOutcome& trained,
                         const PlanRequest& request);

}  // namespace troupe
