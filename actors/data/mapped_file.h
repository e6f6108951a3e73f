/// A file mapped for reading: bytes without a copy, released when the value dies.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "planner/result.h"

namespace troupe {

class MappedFile {
 public:
  /// Maps a regular file; an empty file gives an empty span. Directories and devices are refused.
  static Result<MappedFile> open(const std::filesystem::path& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  /// Valid while this object lives.
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  std::string_view text() const { return {static_cast<const char*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

/// An io or not_found error from errno: "path: cannot <what>: <reason>".
Error file_error(const std::filesystem::path& path, std::string_view what, int error_number);

}  // namespace troupe
