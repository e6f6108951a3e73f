/// A device's own threads. Ops cut their work into shards so that neither the cut nor the number of
/// threads changes a bit; shards are handed out dynamically.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

namespace troupe {

/// The most threads of one pool. Scratch of ops is sized for this many, whatever the pool has, so
/// that bytes depend on shapes alone.
inline constexpr std::uint32_t max_pool_threads = 16;

/// Fork-join over `threads` threads, the caller being one of them. Threads spin briefly, then
/// sleep. Every thread has omp_set_num_threads(1) in force, so that library calls run in the
/// caller. Within `run`, subnormal numbers count as 0 on every thread.
class ComputePool {
 public:
  /// 1 <= threads <= max_pool_threads. `cores`: the caller's thread is not pinned by this; helper i
  /// goes to cores[(i + 1) % size].
  explicit ComputePool(std::uint32_t threads, const std::vector<int>& cores = {});
  ~ComputePool();
  ComputePool(const ComputePool&) = delete;
  ComputePool& operator=(const ComputePool&) = delete;

  std::uint32_t threads() const;

  /// Only one thread at a time may call this, always the same one while helpers are to stay pinned.
  /// Calls body(shard, thread) for every shard in [0, shards); returns when all are done.
  /// `thread` is in [0, threads()): scratch may be kept per thread, results never may.
  template <class F>
  void run(std::uint64_t shards, F&& body) {
    run_erased(
        shards,
        [](void* f, std::uint64_t shard, std::uint32_t thread) {
          (*static_cast<std::remove_reference_t<F>*>(f))(shard, thread);
        },
        const_cast<void*>(static_cast<const void*>(std::addressof(body))));
  }

 private:
  using Call = void (*)(void*, std::uint64_t, std::uint32_t);
  void run_erased(std::uint64_t shards, Call call, void* body);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace troupe
