#include "devices/arena.h"

#include <cstdint>
#include <utility>

#include "devices/tensor.h"
#include "tests/support/catch.h"

using namespace troupe;

TEST_CASE("an arena counts in 64-byte units and keeps the peak of the sum") {
  for (const auto backing : {Arena::Backing::memory, Arena::Backing::counting}) {
    Arena arena("n0.gpu0", 1000 * 64, backing);
    {
      auto weights = arena.allocate(65, MemoryCategory::weights);
      REQUIRE(weights.ok());
      CHECK(weights->size() == 65);
      CHECK(arena.use().in_use == 128);
      auto scratch = arena.allocate(640, MemoryCategory::workspace);
      REQUIRE(scratch.ok());
      CHECK(arena.use().peak == 128 + 640);
      *scratch = Block();
      auto activations = arena.allocate(320, MemoryCategory::activations);
      REQUIRE(activations.ok());
      const ArenaUse use = arena.use();
      CHECK(use.in_use == 128 + 320);
      CHECK(use.peak == 128 + 640);  // not the sum of the categories' peaks
      CHECK(use.category_peak[static_cast<std::size_t>(MemoryCategory::workspace)] == 640);
      CHECK(use.category_in_use[static_cast<std::size_t>(MemoryCategory::workspace)] == 0);
      CHECK(use.allocations == 3);
    }
    CHECK(arena.use().in_use == 0);
  }
}

TEST_CASE("an arena gives its cap to the byte and not one more") {
  Arena arena("n1.cpu0", 128, Arena::Backing::memory);
  auto all = arena.allocate(128, MemoryCategory::weights);
  REQUIRE(all.ok());
  auto more = arena.allocate(1, MemoryCategory::activations);
  REQUIRE_FALSE(more.ok());
  CHECK(more.error().code == ErrorCode::out_of_memory);
  CHECK_THAT(more.error().text, Catch::Contains("n1.cpu0") && Catch::Contains("activations"));
  CHECK_THAT(more.error().text, Catch::Contains("(1 bytes)") && Catch::Contains("(0 bytes)"));
  CHECK_FALSE(arena.allocate(~Bytes{0}, MemoryCategory::weights).ok());
  CHECK(arena.use().allocations == 1);
}

TEST_CASE("blocks are aligned, zero, separate, and small or large") {
  Arena arena("d", 64_MiB, Arena::Backing::memory);
  for (const Bytes bytes : {Bytes{1}, Bytes{100}, Bytes{1_MiB - 1}, Bytes{5_MiB + 3}}) {
    auto a = arena.allocate(bytes, MemoryCategory::weights);
    auto b = arena.allocate(bytes, MemoryCategory::weights);
    REQUIRE((a.ok() && b.ok()));
    CHECK(reinterpret_cast<std::uintptr_t>(a->data()) % 64 == 0);
    std::uint64_t sum = 0;
    for (Bytes i = 0; i < bytes; ++i) sum += static_cast<std::uint64_t>(a->data()[i]);
    CHECK(sum == 0);
    for (Bytes i = 0; i < bytes; ++i) a->data()[i] = std::byte{1};
    CHECK(b->data()[0] == std::byte{0});
    CHECK(b->data()[bytes - 1] == std::byte{0});
  }
}

TEST_CASE("a counting arena hands out no memory, and an empty block is one too") {
  Arena arena("meta", 1_GiB * 1024, Arena::Backing::counting);
  auto block = arena.allocate(512_GiB, MemoryCategory::weights);
  REQUIRE(block.ok());
  CHECK(block->data() == nullptr);
  Block moved = std::move(*block);
  CHECK(moved.size() == 512_GiB);
  CHECK(arena.use().in_use == 512_GiB);
  Arena real("d", 64, Arena::Backing::memory);
  auto empty = real.allocate(0, MemoryCategory::weights);
  REQUIRE(empty.ok());
  CHECK(real.use().in_use == 0);
}

TEST_CASE("a tensor knows its rows, columns and bytes") {
  const Tensor t = make_tensor(nullptr, DType::bf16, {2, 3, 5});
  CHECK(t.elements() == 30);
  CHECK(t.rows() == 6);
  CHECK(t.columns() == 5);
  CHECK(t.bytes() == 60);
  CHECK(t.dense());
}
