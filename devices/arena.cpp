#include "devices/arena.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace troupe {
namespace {

// Large blocks come from the kernel page by page and may be backed by huge pages; small ones would
// waste most of a page.
constexpr Bytes mapped_from = 1_MiB;
constexpr Bytes page_bytes = 4096;

std::byte* take(Bytes bytes) {
  if (bytes < mapped_from) {
    void* p = std::aligned_alloc(64, bytes);
    if (p != nullptr) std::memset(p, 0, bytes);
    return static_cast<std::byte*>(p);
  }
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  // Only advice: without huge pages everything still works.
  (void)madvise(p, bytes, MADV_HUGEPAGE);
  // First touches are dear, so they happen here and not within a step.
  auto* bytes_of = static_cast<volatile std::byte*>(p);
  for (Bytes i = 0; i < bytes; i += page_bytes) bytes_of[i] = std::byte{0};
  return static_cast<std::byte*>(p);
}

void give_back(std::byte* data, Bytes bytes) {
  if (bytes < mapped_from) {
    std::free(data);
  } else {
    EXPECTS(munmap(data, bytes) == 0);
  }
}

}  // namespace

const char* to_string(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::weights: return "weights";
    case MemoryCategory::gradients: return "gradients";
    case MemoryCategory::optimizer: return "optimizer";
    case MemoryCategory::activations: return "activations";
    case MemoryCategory::workspace: return "workspace";
    case MemoryCategory::transfer: return "transfer";
  }
  return "unknown";
}

struct Arena::State {
  std::string name;
  Backing backing = Backing::memory;
  mutable std::mutex mutex;
  ArenaUse use;
  std::uint64_t blocks = 0;

  void release(std::byte* data, Bytes size, MemoryCategory category) {
    const Bytes bytes = arena_bytes(size);
    if (data != nullptr) give_back(data, bytes);
    const std::lock_guard lock(mutex);
    EXPECTS(blocks > 0 && use.in_use >= bytes);
    --blocks;
    use.in_use -= bytes;
    use.category_in_use[static_cast<std::size_t>(category)] -= bytes;
  }
};

Block::Block(Block&& other) noexcept {
  *this = std::move(other);
}

Block& Block::operator=(Block&& other) noexcept {
  if (this == &other) return *this;
  if (arena_ != nullptr) arena_->state_->release(data_, size_, category_);
  arena_ = std::exchange(other.arena_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  category_ = other.category_;
  return *this;
}

Block::~Block() {
  if (arena_ != nullptr) arena_->state_->release(data_, size_, category_);
}

Arena::Arena(std::string device_name, Bytes cap, Backing backing)
    : state_(std::make_unique<State>()) {
  state_->name = std::move(device_name);
  state_->backing = backing;
  state_->use.cap = cap;
}

Arena::~Arena() {
  EXPECTS(state_->blocks == 0);
}

Result<Block> Arena::allocate(Bytes bytes, MemoryCategory category) {
  State& s = *state_;
  const Bytes rounded = arena_bytes(bytes);
  const auto index = static_cast<std::size_t>(category);
  const std::lock_guard lock(s.mutex);
  const Bytes free = s.use.cap - s.use.in_use;
  if (rounded < bytes || rounded > free) {
    return Error{ErrorCode::out_of_memory,
                 fmt::format("{}: {} need {} ({} bytes), but only {} ({} bytes) of {} are free",
                             s.name, to_string(category), format_bytes(bytes), bytes,
                             format_bytes(free), free, format_bytes(s.use.cap))};
  }
  Block block;
  if (s.backing == Backing::memory && rounded > 0) {
    block.data_ = take(rounded);
    if (block.data_ == nullptr) {
      return Error{
          ErrorCode::out_of_memory,
          fmt::format("{}: the system has no memory for {} of {} although the device may "
                      "use {}; lower the device's memory",
                      s.name, format_bytes(bytes), to_string(category), format_bytes(s.use.cap))};
    }
  }
  block.arena_ = this;
  block.size_ = bytes;
  block.category_ = category;
  ++s.blocks;
  ++s.use.allocations;
  s.use.in_use += rounded;
  s.use.peak = std::max(s.use.peak, s.use.in_use);
  s.use.category_in_use[index] += rounded;
  s.use.category_peak[index] = std::max(s.use.category_peak[index], s.use.category_in_use[index]);
  return block;
}

ArenaUse Arena::use() const {
  const std::lock_guard lock(state_->mutex);
  return state_->use;
}

Arena::Backing Arena::backing() const {
  return state_->backing;
}

}  // namespace troupe
