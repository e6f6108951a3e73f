#include "actors/watchdog.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

namespace troupe {

Watchdog::Watchdog(std::string what, Seconds timeout)
    : thread_([this, what = std::move(what), timeout] {
        std::unique_lock lock(mutex_);
        if (wake_.wait_for(lock, std::chrono::duration<double>(timeout), [this] { return done_; }))
          return;
        fmt::print(stderr, "troupe: {} did not end within {:.0f} s; the process ends now\n", what,
                   timeout);
        (void)std::fflush(stderr);
        ::_exit(70);
      }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

}  // namespace troupe
