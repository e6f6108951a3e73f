/// Reading checkpoints: one folder, checked before anything is used, read tensor by tensor under
/// whatever plan is in force now.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/checkpoint/manifest.h"
#include "actors/checkpoint/tensor_catalogue.h"
#include "planner/result.h"

namespace troupe {

struct CheckpointOptions {
  bool verify = true;        ///< read all files once and compare checksums
  bool allow_extra = false;  ///< tensors that the model does not have are no error
};

/// Where one tensor's state goes. Moments may be empty when only weights are wanted.
struct StateTarget {
  std::string name;
  std::span<float> weight, first_moment, second_moment;
};

class Checkpoint {
 public:
  /// Checks manifest, names, sizes, headers and that the tensors are exactly the model's; with
  /// `verify` also all bytes. The error names folder, file, tensor or offset.
  static Result<Checkpoint> open(const std::filesystem::path& folder,
                                 const CheckpointOptions& options = {});

  const RunRecord& run() const { return manifest_.run; }
  const Manifest& manifest() const { return manifest_; }
  const std::filesystem::path& folder() const { return folder_; }
  /// Tensors beyond the model's, when they were allowed.
  std::vector<std::string> extra_tensors() const;

  /// Fills the spans of one parameter; moments become zero where the checkpoint has none. Refuses
  /// an unknown name (the nearest is named) and another number of elements.
  Status read(const StateTarget& target) const;
  /// Reads elements [first, first + out.size()) of a tensor of the files, under its name there.
  Status read_values(const std::string& name, std::uint64_t first, std::span<float> out) const;

 private:
  Checkpoint() = default;
  std::filesystem::path folder_;
  Manifest manifest_;
  TensorCatalogue catalogue_;
};

/// One entry of a folder of checkpoints.
struct ListedCheckpoint {
  std::filesystem::path folder;
  std::uint64_t step = 0;
  std::optional<Error> problem;  ///< why it cannot be used; empty for a complete one
};

/// All entries "step-N" and unfinished ".step-N.writing" of `parent`, oldest first. A parent that
/// does not exist has none.
Result<std::vector<ListedCheckpoint>> list_checkpoints(const std::filesystem::path& parent,
                                                       bool verify);

struct LatestCheckpoint {
  std::optional<std::filesystem::path> folder;  ///< the newest complete one, if any
  std::vector<ListedCheckpoint> skipped;        ///< newer ones that cannot be used, and why
};
/// Newest complete one of a folder, checked from the newest on; older ones are not read.
Result<LatestCheckpoint> latest_complete(const std::filesystem::path& parent, bool verify = true);

/// Removes all but the newest `keep` complete checkpoints, and what interrupted saves left. Must
/// not run during a save. Damaged ones are left where they are: they may hold the only copy.
/// Returns what was removed. Requires keep >= 1.
Result<std::vector<std::filesystem::path>> prune_checkpoints(const std::filesystem::path& parent,
                                                             std::uint32_t keep,
                                                             const WriteHook* hook = nullptr);

}  // namespace troupe
