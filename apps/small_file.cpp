#include "apps/small_file.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace troupe {
namespace {

constexpr std::uintmax_t largest_file = 4U << 20U;

}  // namespace

Result<std::string> read_small_file(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code failure;
  const fs::file_status status = fs::status(path, failure);
  if (!fs::exists(status))
    return Error{ErrorCode::invalid_input, fmt::format("{}: there is no such file", path)};
  if (!fs::is_regular_file(status))
    return Error{ErrorCode::invalid_input, fmt::format("{}: this is not a file", path)};
  if (fs::file_size(path, failure) > largest_file)
    return Error{ErrorCode::invalid_input,
                 fmt::format("{}: a configuration has at most 4 MiB", path)};
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file && !file.eof()) return Error{ErrorCode::io, fmt::format("{}: cannot be read", path)};
  return text;
}

}  // namespace troupe
