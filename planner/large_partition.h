/// The partition search where there are too many arrangements to try them all, one stage a device:
/// pipelines filled by dynamic programming (pipeline_fill.h), judged by the recurrence of
/// pipeline_time.h, the best of them improved by moving layers, exchanging, replacing, adding and
/// dropping devices. Internal to the partition search.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/pricer.h"

namespace troupe {

/// The best candidates that fit, by rising predicted step time, at most four; none where none was
/// found. Deterministic: work is bounded by a count, not by the clock. Of schedules other than 1F1B
/// the filled pipelines come as they are, by rising estimate.
std::vector<Candidate> large_partitions(const Pricer& pricer,
                                        const ClusterSpec& cluster,
                                        const PlanOptions& options,
                                        bool tied);

}  // namespace troupe
