#include "devices/compute_pool.h"

#include <atomic>
#include <thread>

#include "devices/threads.h"
#include "planner/result.h"

namespace troupe {
namespace {

constexpr int spins_before_sleep = 2000;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Subnormal numbers count as 0 while this lives: processors take a hundred times as long for each
/// of them, and softmax gradients and second moments are full of them.
class FlushSubnormals {
 public:
#if defined(__x86_64__)
  FlushSubnormals() : before_(__builtin_ia32_stmxcsr()) {
    constexpr unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040;
    __builtin_ia32_ldmxcsr(before_ | flush_to_zero | denormals_are_zero);
  }
  ~FlushSubnormals() {
    __builtin_ia32_ldmxcsr(before_);
  }

 private:
  unsigned before_;
#elif defined(__aarch64__)
  FlushSubnormals() : before_(__builtin_aarch64_get_fpcr()) {
    __builtin_aarch64_set_fpcr(before_ | (1u << 24));
  }
  ~FlushSubnormals() {
    __builtin_aarch64_set_fpcr(before_);
  }

 private:
  unsigned before_;
#else
  FlushSubnormals() {}
  ~FlushSubnormals() {}

 public:
#endif
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;
};

// The word that the pool turns on: generation | closed | helpers inside. A helper joins a round
// only while it is open, so a helper that the system has put aside never delays the others.
constexpr std::uint64_t closed_bit = std::uint64_t{1} << 31;
constexpr std::uint64_t inside_mask = closed_bit - 1;
constexpr std::uint32_t generation_of(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> 32);
}

}  // namespace

struct ComputePool::State {
  // Written by the caller while the round is closed and nobody is inside.
  Call call = nullptr;
  void* body = nullptr;
  std::uint64_t shards = 0;

  alignas(64) std::atomic<std::uint64_t> word{closed_bit};
  alignas(64) std::atomic<std::uint64_t> next{0};
  alignas(64) std::atomic<std::uint32_t> wake{0};  // changes with every round: helpers sleep on it
  alignas(64) std::atomic<std::uint32_t> left{0};  // changes when the last helper leaves
  std::atomic<bool> stop{false};
  std::vector<std::thread> helpers;

  void work(std::uint32_t thread) {
    for (;;) {
      const std::uint64_t shard = next.fetch_add(1, std::memory_order_relaxed);
      if (shard >= shards) return;
      call(body, shard, thread);
    }
  }

  /// Joins the open round unless it is `seen`; true when it took part.
  bool join(std::uint32_t& seen, std::uint32_t thread) {
    std::uint64_t now = word.load(std::memory_order_acquire);
    while (generation_of(now) != seen && (now & closed_bit) == 0) {
      if (!word.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) continue;
      seen = generation_of(now);
      work(thread);
      const std::uint64_t before = word.fetch_sub(1, std::memory_order_acq_rel);
      if ((before & closed_bit) != 0 && (before & inside_mask) == 1) {
        left.fetch_add(1, std::memory_order_release);
        left.notify_one();
      }
      return true;
    }
    return false;
  }

  void help(std::uint32_t thread) {
    std::uint32_t seen = 0;
    int spins = 0;
    while (!stop.load(std::memory_order_acquire)) {
      const std::uint32_t round = wake.load(std::memory_order_acquire);
      if (join(seen, thread)) {
        spins = 0;
      } else if (++spins < spins_before_sleep) {
        pause_briefly();
      } else if (!stop.load(std::memory_order_acquire)) {
        wake.wait(round, std::memory_order_acquire);
        spins = 0;
      }
    }
  }
};

ComputePool::ComputePool(std::uint32_t threads, const std::vector<int>& cores)
    : state_(std::make_unique<State>()) {
  EXPECTS(threads >= 1 && threads <= max_pool_threads);
  keep_libraries_single_threaded();
  for (std::uint32_t i = 1; i < threads; ++i) {
    const int core = cores.empty() ? -1 : cores[i % cores.size()];
    state_->helpers.emplace_back([state = state_.get(), i, core] {
      if (core >= 0) (void)pin_this_thread(core);
      keep_libraries_single_threaded();
      const FlushSubnormals mode;
      state->help(i);
    });
  }
}

ComputePool::~ComputePool() {
  state_->stop.store(true, std::memory_order_release);
  state_->wake.fetch_add(1, std::memory_order_release);
  state_->wake.notify_all();
  for (auto& helper : state_->helpers) helper.join();
}

std::uint32_t ComputePool::threads() const {
  return static_cast<std::uint32_t>(state_->helpers.size()) + 1;
}

void ComputePool::run_erased(std::uint64_t shards, Call call, void* body) {
  State& s = *state_;
  const FlushSubnormals mode;
  if (s.helpers.empty() || shards <= 1) {
    for (std::uint64_t shard = 0; shard < shards; ++shard) call(body, shard, 0);
    return;
  }
  s.call = call;
  s.body = body;
  s.shards = shards;
  s.next.store(0, std::memory_order_relaxed);
  const std::uint64_t before = s.word.load(std::memory_order_relaxed);
  EXPECTS((before & closed_bit) != 0 && (before & inside_mask) == 0);
  const std::uint64_t generation = generation_of(before) + std::uint32_t{1};
  s.word.store(generation << 32, std::memory_order_release);
  s.wake.fetch_add(1, std::memory_order_release);
  s.wake.notify_all();

  s.work(0);

  s.word.fetch_or(closed_bit, std::memory_order_acq_rel);
  for (int spins = 0;; ++spins) {
    const std::uint32_t left = s.left.load(std::memory_order_acquire);
    if ((s.word.load(std::memory_order_acquire) & inside_mask) == 0) return;
    if (spins < spins_before_sleep) {
      pause_briefly();
    } else {
      s.left.wait(left, std::memory_order_acquire);
    }
  }
}

}  // namespace troupe
