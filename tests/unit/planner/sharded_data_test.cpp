#include "planner/sharded_data.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "tests/support/catch.h"

using namespace troupe;

namespace {

using Layers = std::vector<ShardedLayer>;

/// The same rules by brute force: time goes on in whole ticks, the device and the link each do one
/// tick of work where they can. Lengths are whole.
double by_ticks(const Layers& layers, const ShardedSchedule& schedule) {
  struct Use {
    int arithmetic, gather, scatter;
  };
  std::vector<Use> uses;
  for (std::uint64_t m = 0; m < schedule.microbatches; ++m) {
    const bool scattered = schedule.scattered_each || m + 1 == schedule.microbatches;
    for (const ShardedLayer& l : layers) uses.push_back({int(l.forward), int(l.gather), 0});
    for (auto l = layers.rbegin(); l != layers.rend(); ++l)
      uses.push_back({int(l->backward), schedule.gathered_twice ? int(l->gather) : 0,
                      scattered ? int(l->scatter) : 0});
  }
  struct Message {
    std::size_t use;
    int left;
    bool gather;
  };
  std::vector<Message> queue;
  std::vector<bool> ready(uses.size(), false);
  std::size_t issued = 0, current = 0;
  int left = 0;
  bool running = false;
  const auto issue = [&](std::size_t last) {
    for (; issued < uses.size() && issued <= last; ++issued) {
      if (uses[issued].gather == 0)
        ready[issued] = true;
      else
        queue.push_back({issued, uses[issued].gather, true});
    }
  };
  for (int tick = 0;; ++tick) {
    // Everything that happens at this instant, before time goes on.
    for (bool again = true; again;) {
      again = false;
      if (running && left == 0) {
        running = false;
        if (uses[current].scatter > 0) queue.push_back({current, uses[current].scatter, false});
        ++current;
        again = true;
      }
      if (!running && current < uses.size()) {
        issue(current);
        if (ready[current]) {
          running = true;
          left = uses[current].arithmetic;
          issue(current + schedule.prefetch);
          again = true;
        }
      }
    }
    if (current == uses.size() && queue.empty()) return tick;
    if (running) --left;
    if (!queue.empty() && --queue.front().left == 0) {
      if (queue.front().gather) ready[queue.front().use] = true;
      queue.erase(queue.begin());
    }
  }
}

}  // namespace

TEST_CASE("gathers that are shorter than a layer hide, but for the first; the last scatter shows") {
  const Layers layers(4, {10, 20, 3, 5});
  const ShardedSeconds step = sharded_step_seconds(layers, {});
  CHECK(step.arithmetic == 4 * 30);
  CHECK(step.exposed == 3 + 5);
}

TEST_CASE("a link that is slower than the arithmetic sets the pace") {
  const Layers layers(4, {1, 2, 10, 10});
  // Eight gathers and four scatters, one after another; the last layer's backward waits between.
  const ShardedSeconds step = sharded_step_seconds(layers, {});
  CHECK(step.total() >= 12 * 10);
  CHECK(step.total() <= 12 * 10 + 4 * 2);
}

TEST_CASE("without prefetch nothing is hidden in forward") {
  const Layers layers(4, {10, 0, 3, 0});
  ShardedSchedule schedule;
  schedule.prefetch = 0;
  schedule.gathered_twice = false;
  CHECK(sharded_step_seconds(layers, schedule).exposed == 4 * 3);
}

TEST_CASE("accumulation gathers every time, and scatters once where it is told so") {
  const Layers layers(2, {1, 1, 0, 100});
  ShardedSchedule schedule;
  schedule.microbatches = 3;
  CHECK(sharded_step_seconds(layers, schedule).total() >= 6 * 100);
  schedule.scattered_each = false;
  CHECK(sharded_step_seconds(layers, schedule).total() < 2 * 100 + 3 * 4 + 1);
}

TEST_CASE("sharded steps agree with brute force on small instances") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto up_to = [&](int most) {
      return std::uniform_int_distribution<int>(0, most)(random);
    };
    Layers layers(static_cast<std::size_t>(1 + up_to(4)));
    for (ShardedLayer& layer : layers)
      layer = {double(1 + up_to(6)), double(1 + up_to(6)), double(up_to(8)), double(up_to(8))};
    ShardedSchedule schedule;
    schedule.microbatches =
        static_cast<std::uint64_t>(seed % 10 == 0 ? 20 + up_to(40) : 1 + up_to(2));
    schedule.prefetch = static_cast<std::uint64_t>(up_to(2));
    schedule.gathered_twice = up_to(1) == 1;
    schedule.scattered_each = up_to(1) == 1;
    CAPTURE(seed, layers.size(), schedule.microbatches, schedule.prefetch);
    CHECK(sharded_step_seconds(layers, schedule).total() == by_ticks(layers, schedule));
  }
}

TEST_CASE("the gathered weights are those of neighbours") {
  const std::vector<double> layers{5, 1, 1, 4, 4, 1};
  CHECK(gathered_parameters(layers, 0) == 5);
  CHECK(gathered_parameters(layers, 1) == 8);
  CHECK(gathered_parameters(layers, 9) == 16);
}
