#include "actors/shard_text.h"

#include <fmt/format.h>

#include <charconv>

namespace troupe {

std::string shard_text(const FileRecord& record) {
  return fmt::format("{} {} {}", record.bytes, record.xxh3_128, record.name);
}

Result<FileRecord> parse_shard_text(std::string_view text) {
  FileRecord record;
  const std::size_t first = text.find(' ');
  const std::size_t second = first == text.npos ? text.npos : text.find(' ', first + 1);
  if (second == text.npos)
    return Error{ErrorCode::protocol, fmt::format("\"{}\" is no record of a shard", text)};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + first, record.bytes);
  if (failure != std::errc{} || end != text.data() + first)
    return Error{ErrorCode::protocol, fmt::format("\"{}\" has no length", text)};
  record.xxh3_128 = text.substr(first + 1, second - first - 1);
  record.name = text.substr(second + 1);
  return record;
}

}  // namespace troupe
