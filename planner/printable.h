/// Names from files and other programs, made safe for messages.
#pragma once

#include <string>
#include <string_view>

namespace troupe {

/// Control bytes, quotes and backslashes escaped as \x0a; cut after 80 bytes.
std::string printable(std::string_view name);

}  // namespace troupe
