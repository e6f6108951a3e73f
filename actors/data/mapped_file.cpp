#include "actors/data/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace troupe {

Error file_error(const std::filesystem::path& path, std::string_view what, int error_number) {
  return {error_number == ENOENT ? ErrorCode::not_found : ErrorCode::io,
          fmt::format("{}: cannot {}: {}", path.string(), what,
                      std::generic_category().message(error_number))};
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return file_error(path, "open", errno);
  struct stat status {};
  if (::fstat(file, &status) != 0) {
    const int reason = errno;
    ::close(file);
    return file_error(path, "inspect", reason);
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(file);
    return Error{ErrorCode::invalid_input, path.string() + ": not a regular file"};
  }
  MappedFile mapped;
  mapped.size_ = static_cast<std::size_t>(status.st_size);
  if (mapped.size_ > 0) {
    void* const data = ::mmap(nullptr, mapped.size_, PROT_READ, MAP_PRIVATE, file, 0);
    if (data == MAP_FAILED) {
      const int reason = errno;
      ::close(file);
      mapped.size_ = 0;
      return file_error(path, "map", reason);
    }
    mapped.data_ = data;
  }
  ::close(file);
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace troupe
