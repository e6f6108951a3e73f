/// A folder of its own for one test, removed at its end.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "planner/result.h"

namespace troupe {

/// Syncing is free in memory; the space there may be small (some MiB).
enum class Where { disk, memory };

class TemporaryFolder {
 public:
  explicit TemporaryFolder(Where where = Where::disk) {
    const std::filesystem::path memory("/dev/shm");
    const bool in_memory = where == Where::memory && ::access(memory.c_str(), W_OK) == 0;
    std::string name =
        ((in_memory ? memory : std::filesystem::temp_directory_path()) / "troupe-test-XXXXXX")
            .string();
    EXPECTS(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECTS(in.good());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void set_content(const std::filesystem::path& path, std::string_view content) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  out.flush();
  EXPECTS(out.good());
}

}  // namespace troupe
