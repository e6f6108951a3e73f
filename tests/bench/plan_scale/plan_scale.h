/// Measurements of planning itself; each prints its table.
#pragma once

namespace troupe::bench {

/// Seconds of planning, and the step planned against that of a search a hundred times longer.
void planning_at_scale();
/// Seconds of planning as devices double.
void growth_of_planning();

}  // namespace troupe::bench
