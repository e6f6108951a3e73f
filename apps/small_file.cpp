#include "apps/small_file.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace troupe {

Result<std::string> read_small_file(const std::string& path) {
  return read_file(path, 4, "a configuration");
}

Result<std::string> read_file(const std::string& path,
                              std::uintmax_t most_mebibytes,
                              const std::string& what) {
  namespace fs = std::filesystem;
  std::error_code failure;
  const fs::file_status status = fs::status(path, failure);
  if (!fs::exists(status))
    return Error{ErrorCode::invalid_input, fmt::format("{}: there is no such file", path)};
  if (!fs::is_regular_file(status))
    return Error{ErrorCode::invalid_input, fmt::format("{}: this is not a file", path)};
  if (fs::file_size(path, failure) > most_mebibytes << 20U)
    return Error{ErrorCode::invalid_input,
                 fmt::format("{}: {} has at most {} MiB", path, what, most_mebibytes)};
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file && !file.eof()) return Error{ErrorCode::io, fmt::format("{}: cannot be read", path)};
  return text;
}

Status check_outputs(const std::vector<std::string>& inputs,
                     const std::vector<std::string>& outputs) {
  namespace fs = std::filesystem;
  const auto same = [](const std::string& a, const std::string& b) {
    std::error_code failure;
    return fs::weakly_canonical(a, failure) == fs::weakly_canonical(b, failure);
  };
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].empty()) continue;
    for (const std::string& input : inputs)
      if (same(outputs[i], input))
        return Error{ErrorCode::invalid_input,
                     fmt::format("{}: is read here, and is not written over", outputs[i])};
    for (std::size_t j = 0; j < i; ++j)
      if (!outputs[j].empty() && same(outputs[i], outputs[j]))
        return Error{ErrorCode::invalid_input,
                     fmt::format("{}: two outputs in one file", outputs[i])};
  }
  return {};
}

Status write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return {};
  return Error{ErrorCode::io, fmt::format("{}: cannot be written", path)};
}

Status write_files(const std::vector<std::pair<std::string, std::string>>& files) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    const bool there = std::filesystem::exists(files[i].first);
    Status written = write_file(files[i].first, files[i].second);
    if (written) continue;
    std::error_code ignored;
    if (!there) std::filesystem::remove(files[i].first, ignored);
    for (std::size_t made = 0; made < i; ++made)
      std::filesystem::remove(files[made].first, ignored);
    return written;
  }
  return {};
}

}  // namespace troupe
