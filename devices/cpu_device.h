/// A device of this machine's processor: a thread of its own takes work items in order and leads a
/// compute pool. The emulated device is the same with completions held back.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "devices/compute_pool.h"
#include "devices/device.h"

namespace troupe {

class CpuDevice final : public Device {
 public:
  /// `hold`: an item that began at t is reported, and the next may begin, not before
  /// t + Work::modelled. An item begins when the one before has ended and it was submitted.
  CpuDevice(DeviceSpec spec, std::vector<int> cores, bool hold);
  ~CpuDevice() override;

  const DeviceSpec& spec() const override { return spec_; }
  Arena& arena() override { return arena_; }
  void submit(Work work) override;
  void drain() override;

 private:
  struct Item {
    Work work;
    Seconds submitted = 0;
  };
  void lead();

  DeviceSpec spec_;
  std::vector<int> cores_;
  bool hold_;
  Arena arena_;
  std::mutex mutex_;
  std::condition_variable submitted_, idle_;
  std::deque<Item> queue_;
  bool busy_ = false;
  bool stop_ = false;
  std::thread leader_;  // last: it uses everything above
};

}  // namespace troupe
