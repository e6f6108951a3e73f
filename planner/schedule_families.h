/// Published schedules that can be simulated but not yet executed, as values. What is executed has
/// a ScheduleKind and its makers in schedules.h.
///
///   1f1b-flush     PipeDream-Flush (Narayanan et al. 2021, ICML): the order of 1F1B
///   1f1b-2bw       PipeDream-2BW (the same): 1F1B without a flush; the microbatches of several
///                  updates follow each other, here those of one value; versions of weights:
///                  weight_versions_*() below
///   zb-h2          Qi et al. 2024 (arXiv 2401.10241), section 2: zero_bubble_h2
///   zb-1p, zb-2p   the same, section 3: zero_bubble_search at unit times with at most p or 2 p
///                  microbatches in flight on every stage
///   zb-v           the same, section 6: two stages a device, placed down and up again, so that the
///                  first device also computes the loss
///   chimera        Li and Hoefler 2021 (SC'21): two pipelines in opposite directions, each with
///                  half of the microbatches, in groups of p
///   breadth-first  Lamy-Poirier 2022 (arXiv 2211.05953): stages looped over the devices, every
///                  microbatch through a stage before the device turns to its next one
///   layered        layered gradient accumulation with modular placement (Lamy-Poirier 2021, arXiv
///                  2106.02679): breadth-first with one layer a stage, layer l on device l mod p
///   dualpipe       DeepSeek-AI 2024: two pipelines in opposite directions; where its authors run a
///                  forward and a backward overlapped, they stand one after the other here
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "planner/schedule.h"

namespace troupe {

enum class ScheduleFamily : std::uint8_t {
  pipedream_flush,
  pipedream_2bw,
  zero_bubble_h2,
  zero_bubble_1p,
  zero_bubble_2p,
  zero_bubble_v,
  chimera,
  breadth_first,
  layered,
  dualpipe
};
inline constexpr std::size_t schedule_family_count = 10;

std::string_view to_string(ScheduleFamily family);
Result<ScheduleFamily> parse_schedule_family(std::string_view text);

/// p devices in a row.
struct FamilyShape {
  std::uint32_t devices = 1;
  std::uint32_t microbatches = 1;  ///< of the step; of all updates together under 1f1b-2bw
  /// breadth-first: stages a device. layered: layers of the model, also without a whole multiple.
  std::uint32_t loops = 1;
};

/// Where stages stand; as many transfer slots as microbatches, as the papers count none.
StageMap family_stages(ScheduleFamily family, const FamilyShape& shape);

/// Makes, adds transfers, validates. Errors: no device or microbatch; chimera: an odd number of
/// devices or microbatches that are no multiple of the devices; dualpipe: the same for devices, and
/// an odd number of microbatches or fewer than 2 a device; layered: fewer layers than devices.
Result<Schedule> make_schedule(ScheduleFamily family, const FamilyShape& shape);

/// By stage: most versions of its weights that exist at once under PipeDream's weight stashing,
/// which updates after every microbatch; a microbatch's backward uses the version of its forward.
std::vector<std::uint32_t> weight_versions_pipedream(const Schedule& schedule);
/// Version that microbatch k (from 0) uses under PipeDream-2BW with an update every
/// `per_update` microbatches: max(k / per_update - 1, 0).
std::uint32_t version_2bw(std::uint32_t microbatch, std::uint32_t per_update);
/// By stage: most versions that exist at once: from the oldest that a microbatch in flight or the
/// next one uses to the newest that was made.
std::vector<std::uint32_t> weight_versions_2bw(const Schedule& schedule, std::uint32_t per_update);

}  // namespace troupe
