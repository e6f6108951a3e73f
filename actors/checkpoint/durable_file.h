/// Files that are either wholly there or not at all: written once, in order, synced, checksummed.
/// Every operation that changes the disk passes a hook, so that tests can fail or kill at each.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "planner/result.h"

namespace troupe {

/// An operation that is about to change the disk.
enum class WritePoint : std::uint8_t { make_folder, create, write, sync, rename, remove };

/// Called before each such operation; returns 0 to go on or the errno to fail with. Tests only.
using WriteHook = std::function<int(WritePoint, const std::filesystem::path&)>;

/// A file as it was written: what a manifest says about it.
struct FileRecord {
  std::string name;         ///< without folder
  std::uint64_t bytes = 0;  ///< its whole length
  std::string xxh3_128;     ///< of its whole content, 32 hexadecimal digits
  friend bool operator==(const FileRecord&, const FileRecord&) = default;
};

/// Writes and reads go in pieces of at most this many bytes.
inline constexpr std::size_t piece_bytes = std::size_t{1} << 20;

/// A new file, written from front to back. Not finished = removed again.
class DurableFile {
 public:
  /// Fails when the file exists already or is a link. Mode 0600. `hook` must outlive the file.
  static Result<DurableFile> create(const std::filesystem::path& path,
                                    const WriteHook* hook = nullptr);
  DurableFile(DurableFile&&) noexcept;
  DurableFile& operator=(DurableFile&&) = delete;
  ~DurableFile();

  /// Appends, in pieces; a short write is finished, an error names path, bytes wanted and written.
  Status write(std::span<const std::byte> bytes);
  std::uint64_t written() const { return written_; }
  /// XXH3-128 of what was written so far.
  XXH128_hash_t hash_so_far() const { return XXH3_128bits_digest(hash_.get()); }
  /// Syncs and closes. After a failed sync the file is dropped, never synced again.
  Result<FileRecord> finish();

 private:
  DurableFile(int file, std::filesystem::path path, const WriteHook* hook);
  struct FreeHash {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  int file_ = -1;
  std::filesystem::path path_;
  const WriteHook* hook_ = nullptr;
  std::uint64_t written_ = 0;
  std::unique_ptr<XXH3_state_t, FreeHash> hash_;
};

/// Makes one folder (mode 0700); its parent must exist.
Status make_folder(const std::filesystem::path& folder, const WriteHook* hook = nullptr);
/// Makes the names in a folder durable.
Status sync_folder(const std::filesystem::path& folder, const WriteHook* hook = nullptr);
/// Renames within one parent and syncs the parent. An existing target of a file is replaced; an
/// existing folder is exchanged, so that a complete one is visible under the name at all times, and
/// the old content is removed afterwards.
Status rename_durably(const std::filesystem::path& from,
                      const std::filesystem::path& to,
                      const WriteHook* hook = nullptr);
/// Removes a file or a folder with all in it; nothing there is no error.
Status remove_tree(const std::filesystem::path& path, const WriteHook* hook = nullptr);

/// Hashes a file as `FileRecord` does; refuses links and anything but regular files.
Result<FileRecord> record_of(const std::filesystem::path& path);
/// Hex of an XXH3-128 hash, high half first.
std::string to_hex(XXH128_hash_t hash);
/// Writes a small file whole: create, write, sync.
Result<FileRecord> write_file(const std::filesystem::path& path,
                              std::string_view content,
                              const WriteHook* hook = nullptr);
/// Reads a small file whole, at most `limit` bytes; links are refused.
Result<std::string> read_file(const std::filesystem::path& path, std::uint64_t limit);

/// File and run names: [A-Za-z0-9._-]{1,128}, and neither "." nor "..".
bool is_plain_name(std::string_view name);

}  // namespace troupe
