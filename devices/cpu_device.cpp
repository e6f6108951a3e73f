#include "devices/cpu_device.h"

#include <algorithm>

#include "devices/threads.h"

namespace troupe {

CpuDevice::CpuDevice(DeviceSpec spec, std::vector<int> cores, bool hold)
    : spec_(std::move(spec)),
      cores_(std::move(cores)),
      hold_(hold),
      arena_(spec_.name, spec_.memory, Arena::Backing::memory),
      leader_([this] { lead(); }) {}

CpuDevice::~CpuDevice() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  submitted_.notify_one();
  leader_.join();
}

void CpuDevice::submit(Work work) {
  {
    const std::lock_guard lock(mutex_);
    EXPECTS(!stop_);
    queue_.push_back(Item{std::move(work), monotonic_seconds()});
  }
  submitted_.notify_one();
}

void CpuDevice::drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return queue_.empty() && !busy_; });
}

void CpuDevice::lead() {
  if (!cores_.empty()) (void)pin_this_thread(cores_[0]);
  ComputePool pool(spec_.threads, cores_);
  Stream stream(Stream::Body::fast, &pool);
  Seconds last_end = 0;
  for (;;) {
    Item item;
    {
      std::unique_lock lock(mutex_);
      busy_ = false;
      if (queue_.empty()) idle_.notify_all();
      submitted_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;  // what was submitted before the end still ran
      item = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
    }
    WorkTimes times;
    times.begin = hold_ ? std::max(last_end, item.submitted) : monotonic_seconds();
    if (item.work.body) item.work.body(stream);
    times.end = monotonic_seconds();
    if (hold_ && times.begin + item.work.modelled > times.end) {
      times.end = times.begin + item.work.modelled;
      sleep_until(times.end);
    }
    last_end = times.end;
    if (item.work.done) item.work.done(times);
  }
}

}  // namespace troupe
