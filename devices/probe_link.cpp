#include "devices/probe_link.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "devices/threads.h"
#include "devices/timing.h"
#include "devices/zmq_link.h"

namespace troupe {
namespace {

constexpr Bytes small_bytes = 4_KiB;
constexpr Bytes large_bytes = 16_MiB;
constexpr std::size_t least_runs = 3;
constexpr Seconds connect_timeout = 20;
constexpr auto arrival_timeout = std::chrono::seconds{20};

/// Device 0 of node 0 and device 1 of a node that is in the same process or in one of its own.
ClusterSpec two_devices(bool own_process) {
  ClusterSpec cluster;
  cluster.nodes = {{"here", false}, {"there", own_process}};
  cluster.devices.resize(2);
  cluster.devices[1].node = NodeId{1};
  return cluster;
}

/// Waits for the news of one transfer.
class Arrivals {
 public:
  void note(const LinkEvent& event) {
    const std::lock_guard lock(mutex_);
    if (event.kind == LinkEvent::Kind::granted) granted_ = event.key.step;
    if (event.kind == LinkEvent::Kind::arrived) arrived_ = event.key.step;
    if (event.kind == LinkEvent::Kind::delivered) delivered_ = event.key.step;
    if (event.kind == LinkEvent::Kind::lost) failure_ = event.error;
    came_.notify_all();
  }
  Status wait_granted(std::uint64_t step) {
    return wait([&] { return granted_ == step; });
  }
  Status wait_arrived(std::uint64_t step) {
    return wait([&] { return arrived_ == step; });
  }
  Status wait_delivered(std::uint64_t step) {
    return wait([&] { return delivered_ == step; });
  }

 private:
  template <class Condition>
  Status wait(Condition condition) {
    std::unique_lock lock(mutex_);
    if (!came_.wait_for(lock, arrival_timeout, [&] { return failure_ || condition(); }))
      return Error{ErrorCode::timeout,
                   "a tensor between two devices of this machine did not arrive"};
    if (failure_) return *failure_;
    return {};
  }
  std::mutex mutex_;
  std::condition_variable came_;
  std::uint64_t granted_ = 0, arrived_ = 0, delivered_ = 0;
  std::optional<Error> failure_;
};

/// Sends from the one hub to the other, which may be the same.
class Sender {
 public:
  Sender(LinkHub& from, LinkHub& to)
      : from_(from), to_(to), source_(large_bytes), sink_(large_bytes) {
    for (LinkHub* hub : {&from_, &to_}) hub->set_epoch({1});
    from_.attach(DeviceId{0}, [this](const LinkEvent& event) { arrivals_.note(event); });
    to_.attach(DeviceId{1}, [this](const LinkEvent& event) { arrivals_.note(event); });
  }
  ~Sender() {
    from_.detach(DeviceId{0});
    to_.detach(DeviceId{1});
  }
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  /// Median seconds from sending to arrival. The receiver has granted its buffer before, as in a
  /// step.
  Result<Seconds> seconds_of(Bytes bytes, Seconds budget) {
    std::vector<Seconds> runs;
    for (Seconds spent = 0; runs.size() < least_runs || spent < budget;) {
      const auto one = send(bytes);
      if (!one) return one.error();
      if (!warm_) {
        warm_ = true;
        continue;
      }
      runs.push_back(*one);
      spent += *one;
    }
    warm_ = false;
    std::sort(runs.begin(), runs.end());
    return median(runs);
  }
  Result<LinkSpec> measure(Seconds budget) {
    const auto little = seconds_of(small_bytes, budget / 2);
    if (!little) return little.error();
    const auto much = seconds_of(large_bytes, budget / 2);
    if (!much) return much.error();
    const double more = static_cast<double>(large_bytes - small_bytes);
    return LinkSpec{*little, more / std::max(*much - *little, 1e-9)};
  }

 private:
  Result<Seconds> send(Bytes bytes) {
    TransferKey key;
    key.epoch = {1};
    key.step = ++step_;
    key.action.op = Op::transfer_forward;
    to_.grant({key, DeviceId{0}, DeviceId{1}, sink_.data(), bytes});
    TROUPE_TRY(arrivals_.wait_granted(step_));
    const Seconds begin = monotonic_seconds();
    from_.send({key, DeviceId{0}, DeviceId{1}, source_.data(), bytes, true});
    TROUPE_TRY(arrivals_.wait_arrived(step_));
    const Seconds end = monotonic_seconds();
    TROUPE_TRY(arrivals_.wait_delivered(step_));  // the bytes are ours again
    return std::max(end - begin, 1e-9);
  }
  LinkHub& from_;
  LinkHub& to_;
  std::vector<std::byte> source_, sink_;
  Arrivals arrivals_;
  std::uint64_t step_ = 0;
  bool warm_ = false;
};

}  // namespace

LinkSpec measure_in_process_link(Seconds budget) {
  LinkHub hub(two_devices(false), true);
  const auto measured = Sender(hub, hub).measure(budget);
  EXPECTS(measured.ok());  // nothing but a copy
  return *measured;
}

Result<LinkSpec> measure_loopback_link(Seconds budget) {
  const std::string host = "127.0.0.1";
  LinkHub here(two_devices(true), false), there(two_devices(true), false);
  Sender sender(here, there);  // sets the epochs before the links open
  auto near = ZmqLink::open(here, 0, host);
  if (!near) return near.error();
  auto far = ZmqLink::open(there, 1, host);
  if (!far) return far.error();
  here.set_remote(near->get());
  there.set_remote(far->get());
  Status connected;
  std::thread other([&] {
    connected =
        (*far)->connect({{0, "here", host, (*near)->port(), {DeviceId{0}}}}, connect_timeout);
  });
  const Status reached =
      (*near)->connect({{1, "there", host, (*far)->port(), {DeviceId{1}}}}, connect_timeout);
  other.join();
  Result<LinkSpec> measured = Error{ErrorCode::internal, ""};
  if (!reached)
    measured = reached.error();
  else if (!connected)
    measured = connected.error();
  else
    measured = sender.measure(budget);
  here.set_remote(nullptr);
  there.set_remote(nullptr);
  return measured;
}

}  // namespace troupe
