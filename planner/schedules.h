/// Makers of schedules. `compute_schedule` gives the compute actions alone, `make_schedule` adds
/// the transfers and validates.
///
/// Two kinds have a written order where stages stand regularly:
///   interleaved     stage s on the (s mod p)th of p devices, microbatches a multiple of p: the
///   order
///                   of Narayanan et al. 2021 (SC'21, section 2.2.2), warm-up of
///                   2 (p - d - 1) + (v - 1) p forwards, then one forward one backward,
///                   microbatches in groups of p
///   zero_bubble_h1  one stage a device: the order of Qi et al. 2024 (H1), W lagging by the stage's
///                   number, so that every stage holds as many microbatches as the first
///
/// Everything else plays a dry run at unit cost in which an idle device picks among the actions
/// that could start, by the policy of its kind:
///   gpipe           F before everything; no B before all F of the device
///   one_f_one_b     B, then F; from F to B a stage holds at most `depth` microbatches
///   interleaved     as one_f_one_b
///   zero_bubble_h1  I, then F, then W; from F to I at most `depth`, from F to W at most the depth
///                   of the first stage
/// `depth` of a stage is 1 + the number of times that the pipeline changes device after it: stages
/// - stage with one stage a device. Ties: groups of `depth of stage 0` microbatches, then the
/// earlier stage for F and the later for B, then the earlier microbatch. The oldest unfinished
/// microbatch can always go on, so this ends for every placement and every count of microbatches.
#pragma once

#include "planner/schedule.h"

namespace troupe {

/// Compute lanes with N and U of each stage at the end of its device's lane; no transfers yet.
/// Promise: at least one stage and one microbatch, devices below device_count, transfer_slots > 0.
Schedule compute_schedule(ScheduleKind kind, const StageMap& stages);

/// Zero bubble H2 of Qi et al. 2024: warm-up deep enough to fill every bubble, up to
/// 2 depth - 1 microbatches in flight.
Schedule zero_bubble_h2(const StageMap& stages);

/// The same order with each B cut into I and W, back to back.
Schedule split_backward(Schedule fused);

/// Makes, adds transfers, validates. Errors: an impossible stage map.
Result<Schedule> make_schedule(ScheduleKind kind, const StageMap& stages);

/// By stage: 1 + the number of device changes after it.
std::vector<std::uint32_t> pipeline_depths(const StageMap& stages);

}  // namespace troupe
