/// JSON files that people or other programs wrote, read without forgiveness: repeated keys, deep
/// nesting and broken UTF-8 are errors, and every error says where it is.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "planner/printable.h"
#include "planner/result.h"

namespace troupe {

/// Deepest nesting that `parse_json` accepts.
inline constexpr int json_depth_limit = 32;

/// Parses `text`; errors read "file:line:column: reason". `file` is only for the message. Refuses
/// repeated keys of one object and nesting deeper than `json_depth_limit`.
Result<nlohmann::json> parse_json(std::string_view text, std::string_view file);

/// "line:column", both from 1, of a byte offset.
std::string position_in(std::string_view text, std::size_t offset);

}  // namespace troupe
