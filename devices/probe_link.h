/// Measures what the links of this machine reach: the figures that transfers are priced with.
#pragma once

#include "planner/cluster.h"
#include "planner/result.h"

namespace troupe {

/// A tensor of a page is sent back to back for the latency, one of 16 MiB for the bandwidth; each
/// at least three times and about half of `budget` seconds; medians.

/// Between devices of one process that copy.
LinkSpec measure_in_process_link(Seconds budget);

/// Between processes of this machine: ZeroMQ over the loopback interface, both ends in this
/// process. Error: as opening or connecting a link fails, or peer_lost and timeout when nothing
/// arrives.
Result<LinkSpec> measure_loopback_link(Seconds budget);

}  // namespace troupe
