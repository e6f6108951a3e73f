/// The seam between everything above and the hardware: allocate, stream, event, copy. A CPU runs
/// the body of a work item on its own pinned threads; an emulated device does the same and then
/// holds the completion back until the modelled time has passed; a meta device only counts; a CUDA
/// device enqueues the body's kernels and reports the event. Above the seam nothing differs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "devices/arena.h"
#include "devices/tensor.h"
#include "planner/cluster.h"
#include "planner/cost.h"
#include "planner/result.h"

namespace troupe {

class ComputePool;

/// Where ops run. Passed to every op; the op's dispatch looks only at this.
class Stream {
 public:
  enum class Body : std::uint8_t {
    naive,  ///< the CPU definition, plain loops
    fast,   ///< the fast CPU body
    meta    ///< nothing is computed, work is counted
  };
  Stream(Body body, ComputePool* pool) : body_(body), pool_(pool) {}
  Body body() const { return body_; }
  ComputePool& pool() const { return *pool_; }
  /// Work counted so far by a meta stream (and reset by the reader).
  OpCount& count() { return count_; }

 private:
  Body body_;
  ComputePool* pool_;
  OpCount count_;
};

/// When a work item ran, in seconds of the device's monotonic clock.
struct WorkTimes {
  Seconds begin = 0;
  Seconds end = 0;
};

/// One item for a device's compute stream: items run in order, one at a time.
struct Work {
  std::function<void(Stream&)> body;
  Seconds modelled = 0;                 ///< what an emulated device makes it last; others ignore it
  std::function<void(WorkTimes)> done;  ///< called on the device's thread: only post a message
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceSpec& spec() const = 0;
  virtual Arena& arena() = 0;
  /// Enqueues and returns at once.
  virtual void submit(Work work) = 0;
  /// Waits until everything submitted has run and its `done` was called.
  virtual void drain() = 0;
};

/// A device of the spec's kind. `cores`: where its threads are pinned; empty = not pinned.
Result<std::unique_ptr<Device>> open_device(const DeviceSpec& spec, const std::vector<int>& cores);

}  // namespace troupe
