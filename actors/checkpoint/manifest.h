/// The manifest of a checkpoint: written last, so that a folder with a manifest is complete. It
/// says what the state is, which files hold it, and how long and what they must be.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "actors/checkpoint/durable_file.h"
#include "planner/model.h"
#include "planner/result.h"

namespace troupe {

/// What a run needs to continue as if it had never stopped, besides the tensors.
struct RunRecord {
  ModelSpec model;
  std::uint64_t step = 0;              ///< steps done; 0: not trained by Troupe yet
  std::uint64_t seed = 0;              ///< of the run
  std::uint64_t data_position = 0;     ///< samples drawn so far
  std::uint64_t data_fingerprint = 0;  ///< of the last run's data (Dataset::fingerprint); 0: none
  std::uint64_t adam_step = 0;         ///< updates applied
  std::uint64_t skipped_steps = 0;  ///< steps without an update; adam_step + skipped_steps = step
  bool has_moments = true;          ///< false after an import: moments are zero
  friend bool operator==(const RunRecord&, const RunRecord&) = default;
};

/// One file and the tensors in it (none for config.json and the index).
struct ShardRecord {
  FileRecord file;
  std::vector<std::string> tensors;
  friend bool operator==(const ShardRecord&, const ShardRecord&) = default;
};

struct Manifest {
  RunRecord run;
  std::vector<ShardRecord> files;
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

inline constexpr std::uint32_t manifest_version = 2;
inline constexpr std::uint64_t manifest_limit = 64 << 20;
inline constexpr std::string_view manifest_name = "manifest.json";

/// JSON, with a checksum of itself.
std::string manifest_text(const Manifest& manifest);

/// Accepts exactly what `manifest_text` writes: every key there, no other, nothing repeated, plain
/// file names, counters that agree, the checksum right.
Result<Manifest> parse_manifest(std::string_view text, std::string_view file);

}  // namespace troupe
