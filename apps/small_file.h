/// Files that are read or written whole.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "planner/result.h"

namespace troupe {

/// The bytes of a file of at most 4 MiB. The error (invalid_input, or io when it cannot be read)
/// begins with the path.
Result<std::string> read_small_file(const std::string& path);
/// The same of at most so many MiB; `what` the file is, for the refusal: "a plan".
Result<std::string> read_file(const std::string& path,
                              std::uintmax_t most_mebibytes,
                              const std::string& what);
/// invalid_input where an output is one of the files that were read, or of the other outputs; empty
/// names are none.
Status check_outputs(const std::vector<std::string>& inputs,
                     const std::vector<std::string>& outputs);
/// Error io begins with the path.
Status write_file(const std::string& path, const std::string& text);
/// Several by path, all or none: where one cannot be written, those before it are taken away.
Status write_files(const std::vector<std::pair<std::string, std::string>>& files);

}  // namespace troupe
