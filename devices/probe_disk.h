/// Measures the disk under a folder.
#pragma once

#include <filesystem>

#include "planner/result.h"
#include "planner/units.h"

namespace troupe {

struct MeasuredDisk {
  BytesPerSecond write = 0;  ///< pieces of 1 MiB from the first to the end of the sync
  BytesPerSecond read = 0;   ///< pieces of 1 MiB
  Seconds read_latency = 0;  ///< median of one piece of 4 KiB, from anywhere in the file
  /// Reads went past the page cache; false: the file system does not offer that (a folder in
  /// memory), and they may have come from memory.
  bool direct = false;
};

/// Writes a file of `bytes` (rounded up to 1 MiB) in `folder`, syncs it, reads it back, and leaves
/// nothing behind, whatever ends the process. Error io: names the folder and what failed.
Result<MeasuredDisk> measure_disk(const std::filesystem::path& folder, Bytes bytes);

}  // namespace troupe
