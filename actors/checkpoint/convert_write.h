/// What importers share: writing a checkpoint from values that come piece by piece.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "actors/checkpoint/durable_file.h"
#include "planner/model.h"
#include "planner/result.h"

namespace troupe {

/// Gives elements [first, first + out.size()) of a parameter.
using ValueSource = std::function<Status(
    const ParameterSpec& parameter, std::uint64_t first, std::span<float> out)>;

/// Writes all parameters of a model to one safetensors file, in pieces of 1 MiB.
Result<FileRecord> write_values(const std::filesystem::path& path,
                                const ModelSpec& model,
                                const ValueSource& values);

/// Makes the checkpoint `out` (step 0, no moments). Refuses an `out` that exists; removes its own
/// temporary folder when something fails.
Status write_imported(const std::filesystem::path& out,
                      const ModelSpec& model,
                      const ValueSource& values);

/// The hidden folder beside `out` in which it is made; refuses an `out` that exists.
Result<std::filesystem::path> begin_beside(const std::filesystem::path& out);

}  // namespace troupe
