/// How names and ranges stand in messages.
#pragma once

#include <string>
#include <string_view>

#include "planner/model.h"

namespace troupe {

/// Names from files and other programs, made safe: control bytes, quotes and backslashes escaped as
/// \x0a; cut after 80 bytes.
std::string printable(std::string_view name);

/// "3" or "3-5": the first and the last layer, as people write them. The range is not empty.
std::string layers_text(const LayerRange& layers);

}  // namespace troupe
