/// Which device holds which expert of a mixture-of-experts layer: unequal numbers on unlike devices
/// are legal, hot experts lie alone. The time of a layer is that of its busiest device.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/result.h"
#include "planner/units.h"

namespace troupe {

struct ExpertHost {
  Seconds seconds_per_load = 1;  ///< of a unit of load: tokens, or a share of them
  std::uint32_t most = 0;        ///< experts that its memory holds
};

struct ExpertPlacement {
  std::vector<std::uint32_t> host;  ///< by expert
  std::vector<Seconds> busy;        ///< by host
  Seconds seconds = 0;              ///< of the busiest host
  Seconds bound = 0;                ///< no placement is faster than this
  bool proven = false;              ///< nothing better exists
};

/// Experts of equal load: how many each host gets so that the busiest has least to do. One at a
/// time to the host that ends first with it, which is optimal for equal pieces of work.
/// does_not_fit: the hosts hold fewer experts together, with both numbers.
Result<std::vector<std::uint32_t>> expert_counts(std::uint32_t experts,
                                                 const std::vector<ExpertHost>& hosts);

/// Experts of loads `loads`. Heaviest first to the host that ends first with it (Graham's LPT, the
/// hosts' speeds and room considered), then moves and swaps of experts while the busiest host gets
/// less, then branch and bound over at most `nodes` partial placements. does_not_fit as above.
/// Promise: loads and seconds_per_load are finite and not negative.
Result<ExpertPlacement> place_experts(const std::vector<double>& loads,
                                      const std::vector<ExpertHost>& hosts,
                                      std::uint64_t nodes = 200'000);

}  // namespace troupe
