/// The memory of one device: a hard cap, and who uses how much. Blocks are 64-byte aligned and
/// their sizes are rounded up to 64. A counting arena hands out no memory, only the accounting: the
/// meta device uses it, so that predicted and real bytes come from the same code.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "planner/result.h"
#include "planner/units.h"

namespace troupe {

enum class MemoryCategory : std::uint8_t {
  weights,
  gradients,
  optimizer,
  activations,
  workspace,
  transfer
};
inline constexpr std::size_t memory_category_count = 6;
const char* to_string(MemoryCategory category);

/// Bytes rounded up to the arena's granularity.
constexpr Bytes arena_bytes(Bytes bytes) {
  return (bytes + 63) / 64 * 64;
}

/// In use, peak and peak per category. The total peak is the peak of the sum.
struct ArenaUse {
  Bytes cap = 0;
  Bytes in_use = 0;
  Bytes peak = 0;
  std::array<Bytes, memory_category_count> category_in_use{};
  std::array<Bytes, memory_category_count> category_peak{};
  std::uint64_t allocations = 0;  ///< ever made: unchanged over a step means none inside it
};

class Arena;

/// A block of an arena; gives its bytes back when it goes. Move only. `data()` is null in a
/// counting arena.
class Block {
 public:
  Block() = default;
  Block(Block&& other) noexcept;
  Block& operator=(Block&& other) noexcept;
  ~Block();
  std::byte* data() const { return data_; }
  Bytes size() const { return size_; }  ///< as asked for

 private:
  friend class Arena;
  Arena* arena_ = nullptr;
  std::byte* data_ = nullptr;
  Bytes size_ = 0;
  MemoryCategory category_ = MemoryCategory::workspace;
};

/// Not thread-safe: its device's owner allocates at set-up, `use()` may be read from any thread.
/// Must outlive its blocks.
class Arena {
 public:
  enum class Backing : std::uint8_t { memory, counting };
  Arena(std::string device_name, Bytes cap, Backing backing);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Error out_of_memory names the device, the category, bytes asked for and bytes free.
  Result<Block> allocate(Bytes bytes, MemoryCategory category);
  ArenaUse use() const;
  Backing backing() const;

 private:
  friend class Block;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace troupe
