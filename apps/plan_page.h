/// `troupe plan --html`: the best plans side by side on one self-contained page.
#pragma once

#include <string>
#include <vector>

#include "apps/simulation.h"
#include "planner/architecture.h"

namespace troupe {

/// A plan on the page, or why there is none.
struct PagePlan {
  std::string title;  ///< "the plan", "runner-up", "schedule gpipe"
  SimulationCase plan;
  SimulatedStep step;
  std::string refused;  ///< not empty: it cannot be
};

/// The plan, the search's runner-up, and the plan under each of the other trained schedules, in
/// order of their step times after the first.
std::vector<PagePlan> plans_side_by_side(const SimulationSource& source);

/// A page with a table of the plans below `above` (HTML), then each with its timeline and memory.
/// Every line of `subtitle` is one of the page.
std::string side_by_side_page(const std::string& title,
                              const std::string& subtitle,
                              const std::string& above,
                              const std::vector<PagePlan>& plans);

/// The page. `note`: a line at the top, if not empty. Promise: the first of `plans` is the plan
/// itself.
std::string plan_page(const RunSpec& spec,
                      const Architecture& model,
                      const std::string& note,
                      const std::vector<PagePlan>& plans);

}  // namespace troupe
