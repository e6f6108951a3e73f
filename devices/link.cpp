#include "devices/link.h"

#include <fmt/format.h>
#include <sys/prctl.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "devices/threads.h"

namespace troupe {

DeliveryTimer::DeliveryTimer() : thread_([this] { loop(); }) {}

DeliveryTimer::~DeliveryTimer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void DeliveryTimer::at(Seconds time, std::function<void()> call) {
  {
    const std::lock_guard lock(mutex_);
    due_.push({time, order_++, std::move(call)});
  }
  wake_.notify_one();
}

void DeliveryTimer::loop() {
  (void)prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);  // a delivery is due in microseconds
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (due_.empty()) {
      wake_.wait(lock);
      continue;
    }
    const Seconds left = due_.top().time - monotonic_seconds();
    if (left > 0) {
      wake_.wait_for(lock, std::chrono::duration<double>(left));
      continue;
    }
    const std::function<void()> call = due_.top().call;
    due_.pop();
    lock.unlock();
    call();
    lock.lock();
  }
}

LinkHub::LinkHub(ClusterSpec cluster, bool copy_within_process)
    : cluster_(std::move(cluster)), copy_(copy_within_process) {}

LinkHub::~LinkHub() = default;

void LinkHub::set_epoch(PlanEpoch epoch) {
  const std::lock_guard lock(mutex_);
  epoch_ = epoch;
  grants_.clear();
  parked_.clear();
}

PlanEpoch LinkHub::epoch() const {
  const std::lock_guard lock(mutex_);
  return epoch_;
}

void LinkHub::attach(DeviceId device, LinkSink sink) {
  const std::lock_guard lock(mutex_);
  sinks_[device] = std::make_shared<LinkSink>(std::move(sink));
}

void LinkHub::detach(DeviceId device) {
  const std::lock_guard lock(mutex_);
  sinks_.erase(device);
}

void LinkHub::set_remote(RemoteLink* remote) {
  const std::lock_guard lock(mutex_);
  remote_ = remote;
}

Seconds LinkHub::hold_seconds(DeviceId from, DeviceId to, Bytes bytes, std::uint64_t step) const {
  const LinkSpec link = cluster_.link(from, to);
  const Seconds moving = link.bandwidth > 0 ? static_cast<double>(bytes) / link.bandwidth : 0.0;
  return (link.latency + moving) * cluster_.disturbed(from, to, step);
}

bool LinkHub::deliver(DeviceId device, LinkEvent event) {
  std::shared_ptr<LinkSink> sink;
  {
    const std::lock_guard lock(mutex_);
    const auto found = sinks_.find(device);
    if (found == sinks_.end()) return false;
    sink = found->second;
  }
  (*sink)(std::move(event));
  return true;
}

void LinkHub::lost(const Error& error) {
  std::vector<std::shared_ptr<LinkSink>> sinks;
  LinkEvent event;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [device, sink] : sinks_) sinks.push_back(sink);
    event.key.epoch = epoch_;
  }
  event.kind = LinkEvent::Kind::lost;
  event.error = error;
  for (const auto& sink : sinks) (*sink)(event);
}

void LinkHub::grant(const Grant& grant) {
  RemoteLink* remote = nullptr;
  std::optional<Transfer> waiting;
  {
    const std::lock_guard lock(mutex_);
    if (grant.key.epoch != epoch_) {
      ++stale_;
      return;
    }
    if (sinks_.count(grant.from) == 0) {
      remote = remote_;
      if (remote == nullptr) {
        ++unexpected_;
        return;
      }
    } else if (const auto parked = parked_.find(grant.key); parked != parked_.end()) {
      waiting = parked->second;
      parked_.erase(parked);
    } else {
      grants_[grant.key] = grant;
    }
  }
  if (remote != nullptr) {
    remote->grant(grant);
    return;
  }
  (void)deliver(grant.from, event_of(LinkEvent::Kind::granted, grant.key, grant.from, grant.to));
  if (waiting) start_local(*waiting, grant);
}

void LinkHub::send(const Transfer& transfer) {
  RemoteLink* remote = nullptr;
  std::optional<Grant> granted;
  {
    const std::lock_guard lock(mutex_);
    if (transfer.key.epoch != epoch_) {
      ++stale_;
      return;
    }
    if (sinks_.count(transfer.to) == 0) {
      remote = remote_;
    } else if (const auto found = grants_.find(transfer.key); found != grants_.end()) {
      granted = found->second;
      grants_.erase(found);
    } else {
      parked_[transfer.key] = transfer;
      return;
    }
  }
  if (granted) {
    start_local(transfer, *granted);
    return;
  }
  if (remote != nullptr) {
    remote->send(transfer);
    return;
  }
  LinkEvent event;
  event.kind = LinkEvent::Kind::lost;
  event.key = transfer.key;
  event.error = {ErrorCode::peer_lost,
                 fmt::format("{}: device d{} is in no process that is "
                             "connected",
                             to_string(transfer.key.action), transfer.to.value)};
  (void)deliver(transfer.from, event);
}

void LinkHub::start_local(const Transfer& transfer, const Grant& grant) {
  const Seconds begin = monotonic_seconds();
  const bool copies = grant.data != nullptr && (copy_ || transfer.copy);
  const auto finish = [this, transfer, begin](std::byte* data) {
    LinkEvent event;
    event.key = transfer.key;
    event.from = transfer.from;
    event.to = transfer.to;
    event.data = data;
    event.begin = begin;
    event.end = monotonic_seconds();
    event.kind = LinkEvent::Kind::arrived;
    (void)deliver(transfer.to, event);
    event.kind = LinkEvent::Kind::delivered;
    (void)deliver(transfer.from, event);
  };
  if (copies && grant.bytes < transfer.bytes) {
    LinkEvent event;
    event.kind = LinkEvent::Kind::lost;
    event.key = transfer.key;
    event.error = {ErrorCode::protocol,
                   fmt::format("{}: {} bytes come for a buffer of {}",
                               to_string(transfer.key.action), transfer.bytes, grant.bytes)};
    (void)deliver(transfer.to, event);
    return;
  }
  const Seconds hold = hold_seconds(transfer.from, transfer.to, transfer.bytes, transfer.key.step);
  if (!copies && hold <= 0) {
    finish(transfer.data);
    return;
  }
  if (!copies) {
    timer_.at(begin + hold, [finish, data = transfer.data] { finish(data); });
    return;
  }
  // The copy is made at once, the news of it is held back.
  timer_.at(begin, [this, finish, transfer, grant, until = begin + hold] {
    std::memcpy(grant.data, transfer.data, transfer.bytes);
    timer_.at(until, [finish, data = grant.data] { finish(data); });
  });
}

}  // namespace troupe
