/// Writing a checkpoint, by one process or by several: each owner writes shard files of its own
/// tensors into a temporary folder; then one of them commits: checks that every tensor of the model
/// is there once, writes config.json, the index and, last, the manifest, and renames the folder.
/// Nothing is copied: tensors go to the file from where they are, in pieces of 1 MiB.
///
///     checkpoints/.step-00000020.writing/  ->  checkpoints/step-00000020/
///       model-00001-of-00002.safetensors       weights, by Hugging Face's names
///       optimizer-00001-of-00002.safetensors   NAME.exp_avg and NAME.exp_avg_sq
///       config.json  model.safetensors.index.json
///       manifest.json
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "actors/checkpoint/durable_file.h"
#include "actors/checkpoint/manifest.h"
#include "planner/result.h"

namespace troupe {

/// One tensor to be written. The spans have the shape's number of elements and must stay unchanged
/// until the call returns. Without moments both are empty, for all tensors of a checkpoint alike.
/// A tensor that several stages hold (a tied table) is given by its first owner only.
struct StateView {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::span<const float> weight, first_moment, second_moment;
};

/// Which of how many owners; index from 0.
struct ShardIndex {
  std::uint32_t index = 0, count = 1;
};

/// "step-00000020".
std::string checkpoint_name(std::uint64_t step);

/// Makes `parent` if need be and the temporary folder of a step, removing what an interrupted save
/// left there. Called once, before any owner writes.
Result<std::filesystem::path> begin_checkpoint(const std::filesystem::path& parent,
                                               std::uint64_t step,
                                               const WriteHook* hook = nullptr);

/// Writes one owner's files; returns what was written, for the commit. An owner without tensors
/// writes none.
Result<std::vector<FileRecord>> write_shards(const std::filesystem::path& temporary_folder,
                                             ShardIndex shard,
                                             std::span<const StateView> state,
                                             const WriteHook* hook = nullptr);

/// Completes a checkpoint from the records of all owners. Refuses, naming the tensor: one that is
/// missing, doubled (with both files), unknown, or of another shape than the model's. Returns the
/// final folder. A complete checkpoint of the same step is replaced at one instant.
Result<std::filesystem::path> commit_checkpoint(const std::filesystem::path& temporary_folder,
                                                const RunRecord& run,
                                                const std::vector<FileRecord>& shards,
                                                const WriteHook* hook = nullptr);

/// The same under a name of the caller's choice, beside the temporary folder.
Status commit_checkpoint_as(const std::filesystem::path& folder,
                            const std::filesystem::path& temporary_folder,
                            const RunRecord& run,
                            const std::vector<FileRecord>& shards,
                            const WriteHook* hook = nullptr);

/// All three, for one owner.
Result<std::filesystem::path> save_checkpoint(const std::filesystem::path& parent,
                                              const RunRecord& run,
                                              std::span<const StateView> state,
                                              const WriteHook* hook = nullptr);

/// What a tensor's moments are called in files.
std::string first_moment_name(std::string_view tensor);
std::string second_moment_name(std::string_view tensor);

}  // namespace troupe
