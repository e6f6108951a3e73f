#include "devices/probe_disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "devices/threads.h"
#include "devices/timing.h"

namespace troupe {
namespace {

constexpr Bytes piece = 1_MiB;
constexpr Bytes page = 4_KiB;
constexpr int latency_reads = 32;

struct File {
  int fd = -1;
  explicit File(int opened) : fd(opened) {}
  ~File() {
    if (fd >= 0) ::close(fd);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
};

struct Free {
  void operator()(std::byte* data) const { ::free(data); }
};
using Aligned = std::unique_ptr<std::byte, Free>;

Error cannot(const char* what, const std::filesystem::path& folder) {
  return {ErrorCode::io,
          fmt::format("cannot {} a file in {}: {}", what, folder.string(), std::strerror(errno))};
}

/// Past the page cache where the file system does that: the same open file, seen through /proc.
int open_for_reading(int fd, bool& direct) {
  const std::string path = fmt::format("/proc/self/fd/{}", fd);
  const int opened = ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  direct = opened >= 0;
  return direct ? opened : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
}

bool read_all(int fd, std::byte* to, Bytes bytes, Bytes at) {
  for (Bytes done = 0; done < bytes;) {
    const ssize_t got = ::pread(fd, to + done, bytes - done, static_cast<off_t>(at + done));
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = EIO;  // shorter than it was written
    if (got <= 0) return false;
    done += static_cast<Bytes>(got);
  }
  return true;
}

bool write_all(int fd, const std::byte* from, Bytes bytes) {
  for (Bytes done = 0; done < bytes;) {
    const ssize_t put = ::write(fd, from + done, bytes - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    done += static_cast<Bytes>(put);
  }
  return true;
}

}  // namespace

Result<MeasuredDisk> measure_disk(const std::filesystem::path& folder, Bytes bytes) {
  const Bytes pieces = std::max<Bytes>(1, (bytes + piece - 1) / piece);
  std::string name = (folder / ".troupe-profile-XXXXXX").string();
  const File out(::mkostemp(name.data(), O_CLOEXEC));
  if (out.fd < 0) return cannot("make", folder);
  (void)::unlink(name.c_str());  // gone with the last descriptor
  const Aligned buffer(static_cast<std::byte*>(::aligned_alloc(page, piece)));
  EXPECTS(buffer != nullptr);
  // Not the same bytes everywhere, so that no file system can take them for a hole or pack them.
  std::mt19937_64 random(1);
  for (Bytes i = 0; i < piece; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(buffer.get() + i, &word, 8);
  }

  MeasuredDisk measured;
  const auto whole = static_cast<double>(pieces * piece);
  const Seconds begin = monotonic_seconds();
  for (Bytes i = 0; i < pieces; ++i) {
    std::memcpy(buffer.get(), &i, sizeof i);
    if (!write_all(out.fd, buffer.get(), piece)) return cannot("write", folder);
  }
  if (::fsync(out.fd) != 0) return cannot("sync", folder);
  measured.write = whole / std::max(monotonic_seconds() - begin, 1e-9);

  (void)::posix_fadvise(out.fd, 0, 0, POSIX_FADV_DONTNEED);
  const File in(open_for_reading(out.fd, measured.direct));
  if (in.fd < 0) return cannot("read", folder);
  const Seconds reading = monotonic_seconds();
  for (Bytes i = 0; i < pieces; ++i)
    if (!read_all(in.fd, buffer.get(), piece, i * piece)) return cannot("read", folder);
  measured.read = whole / std::max(monotonic_seconds() - reading, 1e-9);

  std::vector<Seconds> latencies;
  for (int i = 0; i < latency_reads; ++i) {
    const Bytes at = random() % (pieces * piece / page) * page;
    const Seconds from = monotonic_seconds();
    if (!read_all(in.fd, buffer.get(), page, at)) return cannot("read", folder);
    latencies.push_back(std::max(monotonic_seconds() - from, 1e-9));
  }
  std::sort(latencies.begin(), latencies.end());
  measured.read_latency = median(latencies);
  return measured;
}

}  // namespace troupe
