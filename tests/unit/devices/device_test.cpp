#include "devices/device.h"

#include <atomic>
#include <vector>

#include "devices/compute_pool.h"
#include "devices/probe.h"
#include "devices/threads.h"
#include "tests/support/catch.h"

using namespace troupe;

namespace {

DeviceSpec spec_of(DeviceKind kind, std::uint32_t threads = 2) {
  DeviceSpec spec;
  spec.name = "n0.d0";
  spec.kind = kind;
  spec.memory = 1_MiB;
  spec.threads = threads;
  return spec;
}

}  // namespace

TEST_CASE("a cpu device runs its work in order, one at a time, on its own pool") {
  auto device = open_device(spec_of(DeviceKind::cpu), {});
  REQUIRE(device.ok());
  std::vector<int> order;  // only the device's thread writes, only after drain do we read
  std::vector<WorkTimes> times;
  for (int i = 0; i < 20; ++i) {
    Work work;
    work.body = [&order, i](Stream& stream) {
      CHECK(stream.body() == Stream::Body::fast);
      CHECK(stream.pool().threads() == 2);
      std::atomic<int> shards{0};
      stream.pool().run(8, [&](std::uint64_t, std::uint32_t) { ++shards; });
      if (shards == 8) order.push_back(i);
    };
    work.done = [&times](WorkTimes t) { times.push_back(t); };
    (*device)->submit(std::move(work));
  }
  (*device)->drain();
  REQUIRE(order.size() == 20);
  for (int i = 0; i < 20; ++i) CHECK(order[static_cast<std::size_t>(i)] == i);
  for (std::size_t i = 0; i < times.size(); ++i) {
    CHECK(times[i].begin <= times[i].end);
    if (i > 0) CHECK(times[i - 1].end <= times[i].begin);
  }
  (*device)->drain();  // nothing to wait for
}

TEST_CASE("what was submitted before a device goes still runs") {
  std::atomic<int> ran{0};
  {
    auto device = open_device(spec_of(DeviceKind::cpu, 1), {0});
    REQUIRE(device.ok());
    for (int i = 0; i < 10; ++i) (*device)->submit({[&](Stream&) { ++ran; }, 0, {}});
  }
  CHECK(ran == 10);
}

TEST_CASE("an emulated device holds every completion until the modelled time has passed") {
  auto device = open_device(spec_of(DeviceKind::emulated, 1), {});
  REQUIRE(device.ok());
  std::vector<WorkTimes> times;
  std::vector<Seconds> reported;
  const Seconds submitted = monotonic_seconds();
  for (int i = 0; i < 3; ++i) {
    Work work;
    work.modelled = 0.004;
    work.done = [&](WorkTimes t) {
      times.push_back(t);
      reported.push_back(monotonic_seconds());
    };
    (*device)->submit(std::move(work));
  }
  (*device)->drain();
  REQUIRE(times.size() == 3);
  CHECK(times[0].begin >= submitted);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(times[i].end == Approx(times[i].begin + 0.004).margin(1e-9));
    CHECK(reported[i] >= times[i].end - 1e-6);
    // Back to back: sleeping late does not add up.
    if (i > 0) CHECK(times[i].begin == Approx(times[i - 1].end).margin(1e-9));
  }
}

TEST_CASE("an emulated device that computes longer than modelled says so") {
  auto device = open_device(spec_of(DeviceKind::emulated, 1), {});
  REQUIRE(device.ok());
  WorkTimes times;
  Work work;
  work.body = [](Stream&) {
    const Seconds until = monotonic_seconds() + 0.003;
    while (monotonic_seconds() < until) {
    }
  };
  work.modelled = 0.0001;
  work.done = [&](WorkTimes t) { times = t; };
  (*device)->submit(std::move(work));
  (*device)->drain();
  CHECK(times.end - times.begin >= 0.003);
}

TEST_CASE("a meta device counts, has no memory and lives in modelled time") {
  auto device = open_device(spec_of(DeviceKind::meta), {});
  REQUIRE(device.ok());
  CHECK((*device)->arena().backing() == Arena::Backing::counting);
  WorkTimes last;
  for (int i = 0; i < 2; ++i) {
    Work work;
    work.body = [](Stream& stream) {
      CHECK(stream.body() == Stream::Body::meta);
      ++stream.count().launches;
    };
    work.modelled = 2.5;
    work.done = [&](WorkTimes t) { last = t; };
    (*device)->submit(std::move(work));
  }
  CHECK(last.begin == 2.5);
  CHECK(last.end == 5.0);
}

TEST_CASE("a device without threads or with too many is refused by name") {
  for (const std::uint32_t threads : {0u, max_pool_threads + 1}) {
    auto device = open_device(spec_of(DeviceKind::cpu, threads), {});
    REQUIRE_FALSE(device.ok());
    CHECK(device.error().code == ErrorCode::invalid_input);
    CHECK_THAT(device.error().text, Catch::Contains("n0.d0") && Catch::Contains("1 to 16"));
  }
}

TEST_CASE("a measured peak is a number that a processor can have") {
  ComputePool pool(1);
  const MachinePeak peak = measure_peak(pool);
  CHECK(peak.fma_f32 > 1e8);
  CHECK(peak.memory_read > 1e7);
  CHECK(peak.memory_copy > 1e7);
}
