/// The order of F, I and W on every stage for given times and memory, after the automatic
/// scheduler of Qi et al. 2024 (arXiv 2401.10241, section 3.1): a device fills the gaps of 1F1B
/// with W, and with W alone once it holds as many microbatches as it may. Ours plays that rule with
/// several settings (depth of the warm-up, how large a gap must be, whether an F may make an I
/// late), takes the best, and improves it by moving single actions.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/schedule.h"
#include "planner/units.h"

namespace troupe {

/// One stage a device; vectors by stage.
struct ZeroBubbleProblem {
  std::vector<Seconds> forward, backward_input, backward_weight;
  Seconds transfer = 0;  ///< of an output or a gradient to the stage beside; links never queue
  std::vector<std::uint32_t> in_flight_limits;  ///< microbatches from F to I, at least 1
  std::uint32_t microbatches = 1;
  /// What a microbatch between I and W counts against the limit: the inputs and output gradients of
  /// the products (M_W) as a share of all that is kept from F to I (M_B).
  double deferred_share = 1;
  /// Work spent on moving single actions, counted in actions played.
  std::uint64_t effort = 4'000'000;
};

/// Compute lanes, N and U at their ends, no transfers; as many transfer slots as microbatches.
/// Minimises the longest time between a device's first and last action. Promise: at least one
/// stage, one microbatch and a limit of one; all vectors as long as there are stages; a share from
/// 0 to 1.
Schedule zero_bubble_search(const ZeroBubbleProblem& problem);

}  // namespace troupe
