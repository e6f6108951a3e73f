/// The safetensors format, read strictly and written in a stream.
///
/// A file is u64 header length (little endian), a JSON header, and the bytes of the tensors.
/// Refused are: a header beyond `header_limit` or the file, one that does not start with '{',
/// repeated or unknown keys, sizes that do not match dtype and shape, offsets that overlap, leave
/// holes, or do not end exactly where the file does. Errors name the tensor and the offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/checkpoint/durable_file.h"
#include "planner/result.h"

namespace troupe {

/// Element types as files name them.
enum class FileType : std::uint8_t {
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3,
  f8_e5m2,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean
};
std::string_view to_string(FileType type);
std::uint64_t size_of(FileType type);

inline constexpr std::uint64_t header_limit = 100'000'000;
inline constexpr std::size_t rank_limit = 8;

/// One tensor of a file. Offsets count from the first byte after the header.
struct TensorEntry {
  std::string name;
  FileType type = FileType::f32;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0, end = 0;
  std::uint64_t elements() const { return (end - begin) / size_of(type); }
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  ///< in the order of their bytes
  std::map<std::string, std::string> metadata;
  std::uint64_t data_start = 0;  ///< offset in the file of byte 0 of the data
  const TensorEntry* find(std::string_view name) const;
};

/// Length of the header, from the first 8 bytes; checked against `file_bytes` and `header_limit`.
Result<std::uint64_t> header_length(std::span<const std::byte> first_bytes,
                                    std::uint64_t file_bytes,
                                    std::string_view file);
/// Parses the JSON header of a file of `file_bytes` in all.
Result<SafetensorsHeader> parse_header(std::string_view header,
                                       std::uint64_t file_bytes,
                                       std::string_view file);

/// "(3, 4)".
std::string shape_text(std::span<const std::uint64_t> shape);

/// An open file, read by tensor name.
class SafetensorsFile {
 public:
  /// Opens and checks the header; reads no data. Links are refused.
  static Result<SafetensorsFile> open(const std::filesystem::path& path);
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;
  ~SafetensorsFile();

  const SafetensorsHeader& header() const { return header_; }
  const std::filesystem::path& path() const { return path_; }
  std::uint64_t bytes() const { return bytes_; }
  /// Reads elements [first, first + out.size()) of a tensor of `header()`, as f32: f32 as it is,
  /// bf16 and f16 widened; other types are refused by name. Uses no more than 1 MiB besides `out`.
  Status read(const TensorEntry& tensor, std::uint64_t first, std::span<float> out) const;

 private:
  SafetensorsFile(int file, std::filesystem::path path, std::uint64_t bytes)
      : file_(file), path_(std::move(path)), bytes_(bytes) {}
  Status read_at(std::uint64_t offset, std::span<std::byte> out, std::string_view tensor) const;

  int file_ = -1;
  std::filesystem::path path_;
  std::uint64_t bytes_ = 0;
  SafetensorsHeader header_;
};

/// What a written file will hold: f32 tensors in the order in which their values come.
struct TensorPlan {
  std::string name;
  std::vector<std::uint64_t> shape;
};

/// Writes f32 tensors in a stream: nothing is kept but the header.
class SafetensorsWriter {
 public:
  static Result<SafetensorsWriter> create(const std::filesystem::path& path,
                                          const std::vector<TensorPlan>& tensors,
                                          const std::map<std::string, std::string>& metadata,
                                          const WriteHook* hook = nullptr);
  /// Appends values of the tensors, in order, in pieces of any size.
  Status append(std::span<const float> values);
  /// Syncs and closes. Requires that all values the header promised were appended.
  Result<FileRecord> finish();

 private:
  SafetensorsWriter(DurableFile file, std::uint64_t elements)
      : file_(std::move(file)), missing_(elements) {}
  DurableFile file_;
  std::uint64_t missing_ = 0;  ///< elements that are still due
};

float from_f16(std::uint16_t bits);
float from_bf16(std::uint16_t bits);

}  // namespace troupe
