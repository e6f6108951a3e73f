/// Memory at the edges between stages. Together with stage_memory.h this is all that a device's
/// arena ever holds: measured peaks equal `memory_of` byte for byte.
#pragma once

#include <cstdint>

#include "planner/plan.h"

namespace troupe {

/// Buffers beside the stage's own slabs, to be taken in category `transfer`, each block rounded to
/// the arena's granularity. Counts are of tensors as large as the boundary tensor
/// (`boundary_bytes`) but for the last, which is as large as the f32 token table
/// (`token_table_bytes`).
struct EdgeBuffers {
  /// Receive slots for XF into this stage: transfer_slots where the stage before is on another
  /// device and not read by reference. Otherwise the tensor is read where the sender keeps it.
  std::uint32_t input = 0;
  /// Receive slots for XB into this stage, likewise.
  std::uint32_t output_gradient = 0;
  /// What B or I of this stage writes, until the stage before has used or received it:
  /// transfer_slots where there is a stage before. Twice as many where that one reads them here
  /// from another device: XB s.m then ends before B (s-1).m has read it, but not before
  /// B (s-1).(m - slots) has, so 2 x slots tensors are in use at most.
  std::uint32_t input_gradient = 0;
  /// 1 where the other end of a tied table is another stage, on whatever device: both ends add the
  /// other's half to their own in place, so the other's half is copied here before either adds.
  std::uint32_t tied_half = 0;
  friend bool operator==(const EdgeBuffers&, const EdgeBuffers&) = default;
};

EdgeBuffers edge_buffers(StageId stage, const StageMap& stages, const ClusterSpec& cluster);

/// One boundary tensor, as the arena counts it.
Bytes boundary_bytes(const ModelProfile& profile);
/// One f32 token table, as the arena counts it.
Bytes token_table_bytes(const ModelSpec& model);
/// All transfer buffers of one stage.
Bytes edge_bytes(const EdgeBuffers& buffers, const ModelSpec& model, const ModelProfile& profile);

}  // namespace troupe
