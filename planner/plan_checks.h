/// What a request for a plan must hold before anything is searched: each problem is named by its
/// place, with the nearest value that would do.
#pragma once

#include "planner/plan.h"

namespace troupe {

/// Whether some block computes again under the options: pinned stages say it themselves.
bool computes_again(const PlanOptions& options);

/// Error invalid_input: a model that is none, no device, a device without memory, node or rates, a
/// rate, time or link that is negative or not a number, a link of endless latency,
/// an override that names no device or gives two processes no bandwidth, a step shape without
/// microbatches.
Status check_request(const ModelSpec& model,
                     const ClusterSpec& cluster,
                     const PlanOptions& options);

}  // namespace troupe
