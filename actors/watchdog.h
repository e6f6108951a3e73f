/// Ends the process when something that must end does not: the last resort against a hang at
/// shutdown.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "planner/units.h"

namespace troupe {

class Watchdog {
 public:
  /// Unless destroyed within `timeout`, prints what hung and calls _exit(70).
  Watchdog(std::string what, Seconds timeout);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace troupe
