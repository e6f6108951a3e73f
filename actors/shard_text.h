/// The record of a written file as one line of text, for messages.
#pragma once

#include <string>
#include <string_view>

#include "actors/checkpoint/durable_file.h"
#include "planner/result.h"

namespace troupe {

/// "bytes checksum name".
std::string shard_text(const FileRecord& record);
Result<FileRecord> parse_shard_text(std::string_view text);

}  // namespace troupe
