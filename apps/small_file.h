/// Files that people write by hand, read whole.
#pragma once

#include <string>

#include "planner/result.h"

namespace troupe {

/// The bytes of a file of at most 4 MiB. The error (invalid_input, or io when it cannot be read)
/// begins with the path.
Result<std::string> read_small_file(const std::string& path);

}  // namespace troupe
