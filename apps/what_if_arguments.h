/// What-if arguments of `troupe simulate` as text, and their reading against a cluster.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/program.h"
#include "planner/what_if.h"

namespace troupe {

struct WhatIfArguments {
  std::vector<std::string> slow;   ///< "DEVICE=FACTOR"
  std::vector<std::string> links;  ///< "A>B=latency:1 ms,bandwidth:1 GB/s,loss:0.1"
  std::vector<std::string> stops;  ///< "DEVICE=TIME"
  double jitter = 0;
  std::uint64_t seed = 1;
};

/// Adds --slow, --link, --stop, --jitter and --seed.
std::shared_ptr<WhatIfArguments> add_what_if_arguments(CLI::App& command);

/// Errors name the flag, what is wrong and the nearest right thing; all of them at once.
Result<WhatIf> read_what_if(const WhatIfArguments& arguments, const ClusterSpec& cluster);

/// One line for each change: "v100 takes 2 times as long".
std::vector<std::string> what_if_lines(const WhatIf& what_if, const ClusterSpec& cluster);

}  // namespace troupe
