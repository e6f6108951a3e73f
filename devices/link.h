/// Tensors between devices. `LinkHub` is one process's end of all links: a device's owner grants
/// receive buffers, sends tensors and hears of arrivals through it. Within the process a tensor
/// travels by reference or by one copy; to another process it goes through a `RemoteLink` (ZeroMQ).
/// A link with a latency or a bandwidth holds its deliveries back, so that emulated machines can be
/// played; that is the same for both ways.
///
/// Credits: a sender's tensor waits until the receiver has granted a buffer for exactly that
/// (epoch, step, action). So nothing is ever sent that has no place, and memory is bounded.
#pragma once

#include <atomic>
#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

#include "planner/cluster.h"
#include "planner/ids.h"
#include "planner/result.h"
#include "planner/schedule.h"

namespace troupe {

/// Names one tensor on its way: XF, XB or XT of one step under one plan.
struct TransferKey {
  PlanEpoch epoch;
  std::uint64_t step = 0;
  Action action;
  friend auto operator<=>(const TransferKey&, const TransferKey&) = default;
};

/// What the owner of a device hears from its links.
struct LinkEvent {
  enum class Kind : std::uint8_t {
    granted,    ///< to the sender: the receiver has room for `key`
    arrived,    ///< to the receiver: the tensor lies at `data`
    delivered,  ///< to the sender: the bytes are no longer needed
    lost        ///< a peer or a transfer failed; `error` says how
  };
  Kind kind = Kind::lost;
  TransferKey key;
  DeviceId from, to;
  std::byte* data = nullptr;
  Seconds begin = 0;  ///< of the transfer, monotonic clock of the machine
  Seconds end = 0;
  std::uint32_t resent = 0;  ///< of `delivered`: how often the tensor had to be sent again
  Error error;
};

inline LinkEvent event_of(LinkEvent::Kind kind,
                          const TransferKey& key,
                          DeviceId from,
                          DeviceId to) {
  LinkEvent event;
  event.kind = kind;
  event.key = key;
  event.from = from;
  event.to = to;
  return event;
}

/// Called on a thread of the link: only post a message.
using LinkSink = std::function<void(LinkEvent)>;

/// A tensor to be sent. The bytes must stay as they are until `delivered`.
struct Transfer {
  TransferKey key;
  DeviceId from, to;
  std::byte* data = nullptr;
  Bytes bytes = 0;
  bool copy = false;  ///< also within a process: the receiver needs bytes of its own
};

/// A buffer for one tensor that is expected. `data` may be null where the tensor will come by
/// reference.
struct Grant {
  TransferKey key;
  DeviceId from, to;
  std::byte* data = nullptr;
  Bytes bytes = 0;
};

/// Sends and grants to devices of other processes; calls LinkHub back.
class RemoteLink {
 public:
  virtual ~RemoteLink() = default;
  virtual void send(const Transfer& transfer) = 0;
  virtual void grant(const Grant& grant) = 0;
};

/// Runs functions at given times on one thread of its own, in order of time, then of arrival.
class DeliveryTimer {
 public:
  DeliveryTimer();
  ~DeliveryTimer();  ///< what is still due is dropped
  DeliveryTimer(const DeliveryTimer&) = delete;
  DeliveryTimer& operator=(const DeliveryTimer&) = delete;
  void at(Seconds time, std::function<void()> call);

 private:
  struct Due {
    Seconds time;
    std::uint64_t order;
    std::function<void()> call;
    bool operator<(const Due& other) const {  // the top of the queue is the earliest
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  void loop();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::priority_queue<Due> due_;
  std::uint64_t order_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

/// Refused messages, by reason, and what was done about those that were damaged or lost.
struct LinkCounters {
  std::uint64_t stale_epoch = 0;  ///< of an epoch, or a run, that is not in force
  std::uint64_t unexpected = 0;   ///< without a grant, or of unknown devices
  std::uint64_t malformed = 0;    ///< lengths, magic number or checksum wrong
  std::uint64_t resent = 0;       ///< tensors to other processes
};

/// What device actors use; tests replace it.
class LinkPort {
 public:
  virtual ~LinkPort() = default;
  /// Tells the sender that there is room. A repeated grant replaces the former one.
  virtual void grant(const Grant& grant) = 0;
  /// Sends as soon as the receiver has granted. One transfer at a time per directed link is the
  /// caller's promise.
  virtual void send(const Transfer& transfer) = 0;
};

class LinkHub : public LinkPort {
 public:
  /// `copy_within_process`: tensors between devices of this process are copied.
  LinkHub(ClusterSpec cluster, bool copy_within_process);
  ~LinkHub() override;

  /// From now on transfers of this epoch alone are accepted; forgets all grants.
  void set_epoch(PlanEpoch epoch);
  PlanEpoch epoch() const;
  /// Devices of this process. `sink` is called from any thread, the last time possibly while
  /// `detach` returns: what it refers to it must hold itself.
  void attach(DeviceId device, LinkSink sink);
  void detach(DeviceId device);
  /// For devices that are not attached here. Not owned; null: there are none.
  void set_remote(RemoteLink* remote);

  void grant(const Grant& grant) override;
  void send(const Transfer& transfer) override;

  /// What this link takes for these bytes in this step, from the begin of the transfer.
  Seconds hold_seconds(DeviceId from, DeviceId to, Bytes bytes, std::uint64_t step) const;
  DeliveryTimer& timer() { return timer_; }
  /// Hands an event to a local device; false: there is none of that id.
  bool deliver(DeviceId device, LinkEvent event);
  /// Tells every local device.
  void lost(const Error& error);
  void count_stale() { ++stale_; }
  void count_unexpected() { ++unexpected_; }
  void count_malformed() { ++malformed_; }
  void count_resent() { ++resent_; }
  LinkCounters counters() const { return {stale_, unexpected_, malformed_, resent_}; }

 private:
  void start_local(const Transfer& transfer, const Grant& grant);
  const ClusterSpec cluster_;
  const bool copy_;
  mutable std::mutex mutex_;
  PlanEpoch epoch_;
  RemoteLink* remote_ = nullptr;
  std::map<DeviceId, std::shared_ptr<LinkSink>> sinks_;
  std::map<TransferKey, Grant> grants_;     ///< of local receivers for local senders
  std::map<TransferKey, Transfer> parked_;  ///< local sends that wait for a grant
  std::atomic<std::uint64_t> stale_{0}, unexpected_{0}, malformed_{0}, resent_{0};
  DeliveryTimer timer_;
};

}  // namespace troupe
