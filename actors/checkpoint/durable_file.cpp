#include "actors/checkpoint/durable_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>
#include <vector>

#include "actors/data/mapped_file.h"

namespace troupe {
namespace {

int ask(const WriteHook* hook, WritePoint point, const std::filesystem::path& path) {
  return hook != nullptr && *hook ? (*hook)(point, path) : 0;
}

struct OpenFile {
  int file = -1;
  std::uint64_t bytes = 0;
  OpenFile() = default;
  OpenFile(OpenFile&& other) noexcept : file(std::exchange(other.file, -1)), bytes(other.bytes) {}
  OpenFile& operator=(OpenFile&&) = delete;
  ~OpenFile() {
    if (file >= 0) ::close(file);
  }
};

Result<OpenFile> open_regular(const std::filesystem::path& path) {
  OpenFile opened;
  opened.file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (opened.file < 0) {
    if (errno == ELOOP)
      return Error{ErrorCode::invalid_input, path.string() + ": links are not followed"};
    return file_error(path, "open", errno);
  }
  struct stat status {};
  if (::fstat(opened.file, &status) != 0) return file_error(path, "inspect", errno);
  if (!S_ISREG(status.st_mode))
    return Error{ErrorCode::invalid_input, path.string() + ": not a regular file"};
  opened.bytes = static_cast<std::uint64_t>(status.st_size);
  return opened;
}

}  // namespace

Result<DurableFile> DurableFile::create(const std::filesystem::path& path, const WriteHook* hook) {
  if (const int reason = ask(hook, WritePoint::create, path); reason != 0)
    return file_error(path, "create", reason);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return file_error(path, "create", errno);
  return DurableFile(file, path, hook);
}

DurableFile::DurableFile(int file, std::filesystem::path path, const WriteHook* hook)
    : file_(file), path_(std::move(path)), hook_(hook), hash_(XXH3_createState()) {
  EXPECTS(hash_ != nullptr);
  XXH3_128bits_reset(hash_.get());
}

DurableFile::DurableFile(DurableFile&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      path_(std::move(other.path_)),
      hook_(other.hook_),
      written_(other.written_),
      hash_(std::move(other.hash_)) {}

DurableFile::~DurableFile() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(path_.c_str());
}

Status DurableFile::write(std::span<const std::byte> bytes) {
  EXPECTS(file_ >= 0);
  const std::size_t wanted = bytes.size();
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), piece_bytes));
    int reason = ask(hook_, WritePoint::write, path_);
    ssize_t count = -1;
    if (reason == 0) {
      count = ::write(file_, piece.data(), piece.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) reason = errno;
    }
    if (count < 0) {
      Error error = file_error(path_, "write", reason);
      error.text +=
          fmt::format(" (wanted {} bytes, {} of them written)", wanted, wanted - bytes.size());
      return error;
    }
    const auto done = static_cast<std::size_t>(count);
    XXH3_128bits_update(hash_.get(), piece.data(), done);
    written_ += done;
    bytes = bytes.subspan(done);
  }
  return {};
}

Result<FileRecord> DurableFile::finish() {
  EXPECTS(file_ >= 0);
  const int injected = ask(hook_, WritePoint::sync, path_);
  const int reason = injected != 0 ? injected : (::fsync(file_) == 0 ? 0 : errno);
  const int closed = ::close(std::exchange(file_, -1)) == 0 ? 0 : errno;
  if (reason != 0 || closed != 0) {
    ::unlink(path_.c_str());
    return file_error(path_, "sync", reason != 0 ? reason : closed);
  }
  return FileRecord{path_.filename().string(), written_, to_hex(XXH3_128bits_digest(hash_.get()))};
}

Status make_folder(const std::filesystem::path& folder, const WriteHook* hook) {
  if (const int reason = ask(hook, WritePoint::make_folder, folder); reason != 0)
    return file_error(folder, "make the folder", reason);
  if (::mkdir(folder.c_str(), 0700) != 0) return file_error(folder, "make the folder", errno);
  return {};
}

Status sync_folder(const std::filesystem::path& folder, const WriteHook* hook) {
  if (const int reason = ask(hook, WritePoint::sync, folder); reason != 0)
    return file_error(folder, "sync", reason);
  const std::string name = folder.empty() ? std::string(".") : folder.string();
  const int file = ::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return file_error(folder, "open", errno);
  const int reason = ::fsync(file) == 0 ? 0 : errno;
  ::close(file);
  if (reason != 0) return file_error(folder, "sync", reason);
  return {};
}

Status rename_durably(const std::filesystem::path& from,
                      const std::filesystem::path& to,
                      const WriteHook* hook) {
  if (const int reason = ask(hook, WritePoint::rename, to); reason != 0)
    return file_error(from, "rename", reason);
  struct stat status {};
  const bool replaces_folder = ::lstat(to.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  const int failed =
      replaces_folder ? ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE)
                      : ::rename(from.c_str(), to.c_str());
  if (failed != 0) return file_error(from, "rename to " + to.filename().string(), errno);
  TROUPE_TRY(sync_folder(to.parent_path(), hook));
  if (replaces_folder) TROUPE_TRY(remove_tree(from, hook));
  return {};
}

Status remove_tree(const std::filesystem::path& path, const WriteHook* hook) {
  if (const int reason = ask(hook, WritePoint::remove, path); reason != 0)
    return file_error(path, "remove", reason);
  std::error_code failure;
  std::filesystem::remove_all(path, failure);
  if (failure) return file_error(path, "remove", failure.value());
  return {};
}

Result<FileRecord> record_of(const std::filesystem::path& path) {
  auto opened = open_regular(path);
  TROUPE_TRY(opened);
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(),
                                                                      &XXH3_freeState);
  EXPECTS(hash != nullptr);
  XXH3_128bits_reset(hash.get());
  std::vector<std::byte> piece(std::min<std::uint64_t>(piece_bytes, opened->bytes + 1));
  std::uint64_t total = 0;
  for (;;) {
    const ssize_t count = ::read(opened->file, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return file_error(path, "read", errno);
    if (count == 0) break;
    XXH3_128bits_update(hash.get(), piece.data(), static_cast<std::size_t>(count));
    total += static_cast<std::uint64_t>(count);
  }
  return FileRecord{path.filename().string(), total, to_hex(XXH3_128bits_digest(hash.get()))};
}

std::string to_hex(XXH128_hash_t hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

Result<FileRecord> write_file(const std::filesystem::path& path,
                              std::string_view content,
                              const WriteHook* hook) {
  auto file = DurableFile::create(path, hook);
  TROUPE_TRY(file);
  TROUPE_TRY(file->write(std::as_bytes(std::span(content.data(), content.size()))));
  return file->finish();
}

Result<std::string> read_file(const std::filesystem::path& path, std::uint64_t limit) {
  auto opened = open_regular(path);
  TROUPE_TRY(opened);
  if (opened->bytes > limit)
    return Error{ErrorCode::invalid_input,
                 fmt::format("{}: {} bytes, more than the {} that are allowed here", path.string(),
                             opened->bytes, limit)};
  std::string content(opened->bytes, '\0');
  std::size_t done = 0;
  while (done < content.size()) {
    const ssize_t count = ::read(opened->file, content.data() + done, content.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return file_error(path, "read", errno);
    if (count == 0) return Error{ErrorCode::corrupt, path.string() + ": ended while being read"};
    done += static_cast<std::size_t>(count);
  }
  return content;
}

bool is_plain_name(std::string_view name) {
  if (name.empty() || name.size() > 128 || name == "." || name == "..") return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

}  // namespace troupe
