#include "planner/layout_search.h"

#include <algorithm>
#include <cmath>

#include "tests/support/catch.h"

namespace troupe {
namespace {

ArchitectureRun gpt(std::uint32_t blocks, std::uint32_t width) {
  ArchitectureRun out;
  out.model.family = "gpt2";
  out.model.blocks = blocks;
  out.model.width = width;
  out.model.attention.heads = out.model.attention.kv_heads = width / 64;
  out.model.attention.head_width = 64;
  out.model.ffn_width = 4 * width;
  out.model.ffn_matrices = 2;
  out.model.vocabulary = 50304;
  out.model.context = 1024;
  out.sequence = 1024;
  return out;
}

DeviceGroup a100s(std::uint64_t devices, double memory = 80e9) {
  return {"a100", devices, memory, {a100_rates(), {}}};
}

DeviceGroup slowed(DeviceGroup group, double times) {
  group.cluster.device.peak /= times;
  group.cluster.device.memory /= times;
  return group;
}

/// Without looking at how the search enumerates: every combination of small numbers.
std::optional<PricedLayout> by_brute_force(const ArchitectureRun& model,
                                           const DeviceGroup& group,
                                           std::uint64_t batch) {
  std::optional<PricedLayout> best;
  for (std::uint64_t code = 0; code < 9ULL * 9 * 9 * 9 * 5 * 4 * 3; ++code) {
    std::uint64_t rest = code;
    const auto digit = [&rest](std::uint64_t base) {
      const std::uint64_t value = rest % base;
      rest /= base;
      return value;
    };
    Layout layout;
    layout.tensor = digit(9);
    layout.pipeline = digit(9);
    layout.data = digit(9);
    layout.microbatch = digit(9);
    layout.chunks = digit(5);
    layout.zero = static_cast<ZeroStage>(digit(4));
    layout.recompute = static_cast<Recompute>(digit(3));
    layout.batch = batch;
    layout.flash_attention = layout.causal = true;
    layout.sequence_parallel = layout.tensor > 1;
    if (layout.tensor * layout.pipeline * layout.data != group.devices) continue;
    if (layout.microbatch == 0 || layout.chunks == 0) continue;
    if (!layout_faults(model, layout).empty()) continue;
    if (layout.recompute == Recompute::selective) continue;
    if (layout.chunks > 1 &&
        (layout.pipeline == 1 || layout.microbatches() % layout.pipeline != 0 ||
         model.model.blocks % (layout.pipeline * layout.chunks) != 0))
      continue;
    if (layout.zero != ZeroStage::none && layout.data == 1) continue;
    if (layout.zero > ZeroStage::optimizer && layout.pipeline > 1) continue;
    const PricedLayout priced{layout, step_seconds(model, layout, {}, group.cluster),
                              step_bytes(model, layout, {})};
    if (priced.bytes.total() > group.memory) continue;
    if (!best || priced.seconds.total() < best->seconds.total()) best = priced;
  }
  return best;
}

TEST_CASE("the layout found is the best of all that fit") {
  for (const double memory : {80e9, 16e9, 8e9, 5e9}) {
    const ArchitectureRun model = gpt(8, 2048);
    const DeviceGroup group = a100s(8, memory);
    const LayoutSearch found = search_layouts(model, group, 16, {});
    const auto best = by_brute_force(model, group, 16);
    INFO("memory " << memory);
    REQUIRE(best.has_value());
    REQUIRE_FALSE(found.best.empty());
    CHECK(found.best.front().seconds.total() == best->seconds.total());
    CHECK(found.fitting <= found.considered);
    CHECK(std::is_sorted(found.best.begin(), found.best.end(), [](const auto& a, const auto& b) {
      return a.seconds.total() < b.seconds.total();
    }));
    for (const PricedLayout& priced : found.best) {
      CHECK(priced.bytes.total() <= memory);
      CHECK(priced.layout.devices() == 8);
    }
  }
}

TEST_CASE("more memory is never slower, and what fits nowhere is told by what needs least") {
  const ArchitectureRun model = gpt(8, 2048);
  Seconds before = std::numeric_limits<Seconds>::infinity();
  for (double memory = 4e9; memory < 100e9; memory *= 1.5) {
    const LayoutSearch found = search_layouts(model, a100s(8, memory), 16, {});
    if (found.best.empty()) continue;
    CHECK(found.best.front().seconds.total() <= before);
    before = found.best.front().seconds.total();
  }
  CHECK(std::isfinite(before));
  const LayoutSearch none = search_layouts(model, a100s(8, 1e6), 16, {});
  CHECK(none.best.empty());
  CHECK(none.fitting == 0);
  REQUIRE(none.smallest.has_value());
  const LayoutSearch exactly =
      search_layouts(model, a100s(8, none.smallest->bytes.total()), 16, {});
  CHECK(exactly.best.size() >= 1);
}

TEST_CASE("pinned values are kept") {
  LayoutChoices choices;
  choices.tensor = {2};
  choices.pipeline = {4};
  choices.recompute = {Recompute::full};
  const LayoutSearch found = search_layouts(gpt(8, 2048), a100s(8), 16, {}, choices);
  REQUIRE_FALSE(found.best.empty());
  for (const PricedLayout& priced : found.best) {
    CHECK(priced.layout.tensor == 2);
    CHECK(priced.layout.pipeline == 4);
    CHECK(priced.layout.recompute == Recompute::full);
  }
}

/// The soonest end over every number of the group's devices that may take part.
Seconds least_of_parts(const ArchitectureRun& model,
                       const DeviceGroup& group,
                       std::uint64_t batch) {
  Seconds least = std::numeric_limits<Seconds>::infinity();
  DeviceGroup part = group;
  for (part.devices = 1; part.devices <= group.devices; ++part.devices) {
    const auto best = search_layouts(model, part, batch, {}).best;
    if (!best.empty()) least = std::min(least, best.front().seconds.total());
  }
  return least;
}

TEST_CASE("unlike groups get shares that no other division of the batch beats") {
  const ArchitectureRun model = gpt(8, 2048);
  const std::vector<DeviceGroup> groups{a100s(4), slowed(a100s(4), 3), slowed(a100s(2), 5)};
  constexpr std::uint64_t batch = 24;
  const auto found = share_batch(model, groups, batch, 50e9, {}, {}, 64);
  REQUIRE(found.has_value());
  std::uint64_t sum = 0;
  for (const GroupShare& share : found->shares) sum += share.batch;
  CHECK(sum == batch);
  CHECK(found->shares[0].batch > found->shares[1].batch);
  // Every division, each group with the best layout that a search for its share finds.
  const auto parameters = static_cast<double>(parameter_count(model.model));
  std::vector<std::vector<Seconds>> own(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (std::uint64_t share = 0; share <= batch; ++share) {
      if (share == 0) {
        own[g].push_back(0);
        continue;
      }
      own[g].push_back(least_of_parts(model, groups[g], share));
    }
  Seconds least = std::numeric_limits<Seconds>::infinity();
  for (std::uint64_t first = 0; first <= batch; ++first)
    for (std::uint64_t second = 0; first + second <= batch; ++second) {
      const std::uint64_t third = batch - first - second;
      const double members = (first > 0) + (second > 0) + (third > 0);
      const Seconds end = std::max({own[0][first], own[1][second], own[2][third]}) +
                          2 * (members - 1) / members * parameters * 2 / 50e9;
      least = std::min(least, end);
    }
  CHECK(found->seconds <= least * 1.0000001);
  CHECK(found->seconds >= least * 0.9999999);
}

TEST_CASE("shares that halving does not reach are found, and awkward batches are divided") {
  const ArchitectureRun model = gpt(8, 2048);
  for (const std::uint64_t batch : {100, 4099}) {
    INFO("batch " << batch);
    const std::vector<DeviceGroup> groups{a100s(batch == 100 ? 8 : 1), a100s(batch == 100 ? 4 : 1)};
    const auto found = share_batch(model, groups, batch, 50e9, {});
    REQUIRE(found.has_value());
    CHECK(found->shares[0].batch + found->shares[1].batch == batch);
    CHECK(found->shares[0].batch > 0);
    CHECK(found->shares[1].batch > 0);
    if (batch != 100) continue;
    Seconds least = std::numeric_limits<Seconds>::infinity();
    for (std::uint64_t first = 1; first < batch; ++first) {
      least = std::min(least, std::max(least_of_parts(model, groups[0], first),
                                       least_of_parts(model, groups[1], batch - first)));
    }
    CHECK(found->seconds - found->reduction == least);
  }
}

TEST_CASE("devices that divide nothing stay idle: more of them are never slower") {
  const ArchitectureRun model = gpt(8, 2048);
  constexpr std::uint64_t batch = 16;
  Seconds before = std::numeric_limits<Seconds>::infinity();
  std::size_t idle = 0;
  for (std::uint64_t devices = 1; devices <= 12; ++devices) {
    INFO(devices << " devices");
    DeviceGroup group = a100s(devices);
    group.cluster.net.devices_per_node = 16;
    const Seconds least = least_of_parts(model, group, batch);
    const UsedDevices used = search_used(model, group, batch, {});
    REQUIRE_FALSE(used.search.best.empty());
    const Seconds step = used.search.best.front().seconds.total();
    CHECK(step == Approx(least).epsilon(1e-8));
    CHECK(used.search.best.front().layout.devices() == used.devices);
    CHECK(step <= before * (1 + 1e-8));
    before = step;
    if (used.devices == devices) continue;
    ++idle;
    if (used.of_all) CHECK(used.of_all->seconds.total() >= step * (1 - 1e-8));
  }
  CHECK(idle > 2);  // 7 and 11, at least, divide neither the batch nor the blocks
}

TEST_CASE("whole nodes stay idle, not devices of a node; nothing fits as it did") {
  const ArchitectureRun model = gpt(8, 2048);
  DeviceGroup group = a100s(9 * 4);
  group.cluster.net.devices_per_node = 4;
  const UsedDevices used = search_used(model, group, 64, {});
  CHECK(used.devices < 36);
  CHECK(used.devices % 4 == 0);
  const UsedDevices none = search_used(model, a100s(8, 1e6), 16, {});
  CHECK(none.devices == 8);
  CHECK(none.search.best.empty());
  CHECK(none.search.smallest.has_value());
}

TEST_CASE("tensor groups do not straddle nodes") {
  DeviceGroup group = a100s(12);
  group.cluster.net.devices_per_node = 6;
  LayoutChoices choices;
  choices.tensor = {4};
  CHECK(search_layouts(gpt(8, 2048), group, 12, {}, choices).considered == 0);
  choices.tensor = {2};
  CHECK(search_layouts(gpt(8, 2048), group, 12, {}, choices).considered > 0);
}

TEST_CASE("L046 cards of half the speed and half the memory get half the batch") {
  const ArchitectureRun model = gpt(8, 2048);
  const std::vector<DeviceGroup> groups{a100s(1, 80e9), slowed(a100s(1, 40e9), 2)};
  const auto found = share_batch(model, groups, 48, 1e15, {});
  REQUIRE(found.has_value());
  REQUIRE(found->shares[1].layout.has_value());
  const double microbatch = static_cast<double>(found->shares[1].layout->layout.microbatch);
  CHECK(std::abs(static_cast<double>(found->shares[1].batch) - 16) <= microbatch);
}

TEST_CASE("a group that would only slow the step gets nothing") {
  const ArchitectureRun model = gpt(8, 2048);
  const std::vector<DeviceGroup> groups{a100s(8), slowed(a100s(1), 1000)};
  const auto found = share_batch(model, groups, 32, 50e9, {});
  REQUIRE(found.has_value());
  CHECK(found->shares[1].batch == 0);
  CHECK_FALSE(found->shares[1].layout.has_value());
  CHECK(found->reduction == 0);
}

}  // namespace
}  // namespace troupe
