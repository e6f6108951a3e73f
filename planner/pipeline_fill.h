/// Pipelines at scale: which kind of device stands at each place and how many layers it takes, by
/// dynamic programming from the end of the pipeline. Internal to the partition search.
///
/// Counted from the end, a place says how many microbatches it keeps in flight (1F1B: 1, 2, 3,
/// ...), so that the bytes of a stage are known before the stages ahead of it are. A state is
/// (stages made, layers left); its value is the time from the first forward of the suffix to its
/// last backward,
///   W(s) = max(M T(s), ceil(M / d(s)) R(s), T(s) + 2 hop + W(s + 1))
/// for M microbatches, T one microbatch's forward and backward, d in flight and R the round trip of
/// one microbatch from here to the end and back: what stage s computes, what it waits for, and the
/// way of the first microbatch in and of the last one out. Where few devices of a kind are left,
/// several values are kept a state, with the devices that they use.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/cluster.h"
#include "planner/pricer.h"
#include "planner/stage_points.h"

namespace troupe {

struct FilledPipeline {
  Candidate candidate;
  Seconds estimate = 0;  ///< W of the whole
};

/// The filled pipelines with the least estimates, unlike each other, by rising estimate, at most
/// `most`. Stages fit as far as is known from the end; `Pricer::fit` decides. With `points`, a
/// stage that would not fit takes its quickest point that does, and the estimate holds its time.
std::vector<FilledPipeline> filled_pipelines(const Pricer& pricer,
                                             const ClusterSpec& cluster,
                                             const PlanOptions& options,
                                             bool tied,
                                             std::size_t most,
                                             const StagePoints* points = nullptr);

}  // namespace troupe
