#include "devices/threads.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <ctime>

namespace troupe {

bool pin_this_thread(int core) {
  if (core < 0 || core >= CPU_SETSIZE) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(core), &set);
  return pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
}

void keep_libraries_single_threaded() {
  // Looked up at run time: only libraries of ours that others wrote bring an OpenMP runtime along.
  using SetThreads = void (*)(int);
  static const auto set_threads =
      reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set_threads != nullptr) set_threads(1);
}

Seconds monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Seconds thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void sleep_until(Seconds until) {
  timespec at{};
  at.tv_sec = static_cast<std::time_t>(std::floor(until));
  at.tv_nsec = static_cast<long>((until - std::floor(until)) * 1e9);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == EINTR) {
  }
}

}  // namespace troupe
