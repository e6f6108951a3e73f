#include <filesystem>

#include "devices/probe_disk.h"
#include "devices/probe_link.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace troupe;

TEST_CASE("links of this machine are measured with a latency and a bandwidth") {
  const LinkSpec copies = measure_in_process_link(1e-3);
  CHECK(copies.latency > 0);
  CHECK(copies.bandwidth > 1e7);  // a copy slower than 10 MB/s is none
  const auto loopback = measure_loopback_link(1e-3);
  REQUIRE(loopback.ok());
  CHECK(loopback->latency > 0);
  CHECK(loopback->bandwidth > 1e7);
}

TEST_CASE("a disk is measured and nothing is left on it") {
  const TemporaryFolder folder;
  const auto disk = measure_disk(folder.path(), 3_MiB);
  REQUIRE(disk.ok());
  CHECK(disk->write > 0);
  CHECK(disk->read > 0);
  CHECK(disk->read_latency > 0);
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a folder that cannot be written to is named") {
  const auto none = measure_disk("/proc", 1_MiB);
  REQUIRE_FALSE(none.ok());
  CHECK(none.error().code == ErrorCode::io);
  CHECK(none.error().text.find("cannot make a file in /proc: ") == 0);
}
