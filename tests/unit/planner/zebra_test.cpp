/// Zebra's order against all orders there are, and gather and squeeze against all moves.
#include "planner/zebra.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/support/catch.h"

using namespace troupe;
using Catch::Matchers::Contains;

namespace {

/// Orders of microbatches on one lane: each stands there `length` times.
std::vector<std::vector<std::uint32_t>> orders(std::uint32_t microbatches,
                                               std::uint32_t length,
                                               bool alike) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t m = 0; m < microbatches; ++m) order.insert(order.end(), length, m);
  std::vector<std::vector<std::uint32_t>> out;
  do {
    // Microbatches are alike: one lane can have them begin in order.
    std::uint32_t next = 0;
    const bool sorted = std::all_of(order.begin(), order.end(), [&](std::uint32_t m) {
      if (m == next) ++next;
      return m < next;
    });
    if (sorted || !alike) out.push_back(order);
  } while (std::next_permutation(order.begin(), order.end()));
  return out;
}

/// Both sides in given orders. A microbatch's way: attention and experts of each layer in turns,
/// the head's two halves, experts and attention of each layer backwards; every change of side is an
/// exchange.
class Played {
 public:
  explicit Played(const ZebraProblem& problem) : problem_(problem) {
    for (std::uint32_t layer = 0; layer < problem.layers; ++layer) {
      seconds_[0].push_back(problem.forward.attention);
      seconds_[1].push_back(problem.forward.experts);
    }
    seconds_[0].push_back(problem.forward.head);
    seconds_[0].push_back(problem.backward.head);
    for (std::uint32_t layer = 0; layer < problem.layers; ++layer) {
      seconds_[0].push_back(problem.backward.attention);
      seconds_[1].push_back(problem.backward.experts);
    }
  }

  std::uint32_t length(std::size_t side) const {
    return static_cast<std::uint32_t>(seconds_[side].size());
  }

  Seconds play(const std::vector<std::uint32_t>& attention,
               const std::vector<std::uint32_t>& experts) {
    const std::vector<std::uint32_t>* order[2] = {&attention, &experts};
    const std::uint32_t r = problem_.microbatches;
    std::vector<std::uint32_t> done[2];
    std::vector<Seconds> ready[2];
    for (std::size_t side = 0; side < 2; ++side) {
      done[side].assign(r, 0);
      ready[side].assign(r, side == 0 ? 0 : -1);
    }
    std::size_t next[2] = {0, 0};
    Seconds lane[2] = {0, 0}, link[2] = {0, 0}, last = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t side = 0; side < 2; ++side)
        while (next[side] < order[side]->size()) {
          const std::uint32_t m = (*order[side])[next[side]];
          if (ready[side][m] < 0) break;
          const std::uint32_t step = done[side][m]++;
          lane[side] = std::max(lane[side], ready[side][m]) + seconds_[side][step];
          last = std::max(last, lane[side]);
          ++next[side];
          moved = true;
          const bool stays = side == 0 && step == problem_.layers;  // from the head to its backward
          const Seconds exchange =
              step < problem_.layers ? problem_.forward.exchange : problem_.backward.exchange;
          if (stays) {
            ready[0][m] = lane[0];
            continue;
          }
          ready[side][m] = -1;
          link[side] = std::max(link[side], lane[side]) + exchange;
          ready[1 - side][m] = link[side];
        }
    }
    const bool whole = next[0] == attention.size() && next[1] == experts.size();
    return whole ? last : 1e9;
  }

 private:
  const ZebraProblem& problem_;
  std::vector<Seconds> seconds_[2];
};

/// Training with random times; exchanges are short, as the paper assumes.
ZebraProblem random_problem(std::mt19937& random) {
  const auto any = [&](std::uint32_t most) { return static_cast<double>(random() % most); };
  ZebraProblem problem;
  for (ZebraSeconds* way : {&problem.forward, &problem.backward}) {
    way->attention = 2 + any(6);
    way->experts = 2 + any(6);
    way->exchange = 0.25 * any(4);
    way->head = any(3);
  }
  return problem;
}

/// The case of 12 layers and 6 microbatches whose experts take a third longer.
ZebraProblem forward_only() {
  ZebraProblem problem;
  problem.layers = 12;
  problem.microbatches = 6;
  problem.experts = 8;
  problem.forward = {1, 1.33, 1, 0.2, 0};
  problem.attention_room = 1000;
  return problem;
}

ZebraKind kind_of(std::uint32_t devices, Seconds attention, Seconds experts) {
  ZebraKind kind;
  kind.devices = devices;
  kind.memory_bytes = 1e9;
  kind.attention_forward = attention;
  kind.attention_backward = 2 * attention;
  kind.experts_forward = experts;
  kind.experts_backward = 2 * experts;
  return kind;
}

ZebraCosts small_costs() {
  ZebraCosts costs;
  costs.layers = 4;
  costs.microbatches = 4;
  costs.experts = 8;
  return costs;
}

}  // namespace

TEST_CASE("zebra: nobody waits longer than under the best of all orders") {
  const auto check = [](std::uint32_t layers, std::uint32_t microbatches, std::uint32_t seed) {
    INFO("layers " << layers << ", microbatches " << microbatches << ", seed " << seed);
    std::mt19937 random(seed);
    ZebraProblem problem = random_problem(random);
    problem.layers = layers;
    problem.microbatches = microbatches;
    Played played(problem);
    Seconds best = 1e9;
    const auto expert_orders = orders(microbatches, played.length(1), false);
    for (const auto& attention : orders(microbatches, played.length(0), true))
      for (const auto& experts : expert_orders)
        best = std::min(best, played.play(attention, experts));
    const Seconds ours = zebra_seconds(problem);
    CHECK(ours >= Approx(best));
    CHECK(ours == Approx(best));
  };
  for (std::uint32_t seed = 0; seed < 12; ++seed) check(2, 2, seed);
  for (std::uint32_t seed = 0; seed < 2; ++seed) check(1, 3, seed);
}

TEST_CASE("zebra: a case that can be followed by hand") {
  const ZebraProblem problem = forward_only();
  CHECK(disaggregated_seconds(problem) == Approx(12 * 6 * (1 + 1.33 + 0.4)));
  // Experts never wait after the first attention and exchange.
  CHECK(zebra_seconds(problem) == Approx(1 + 0.2 + 72 * 1.33 + 0.2));
  const auto moves = gather_and_squeeze(problem);
  REQUIRE(moves.ok());
  // Of 8 experts one a layer moves; what is left over makes a second one in layer 8.
  CHECK(*moves == ExpertMoves{1, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1});
  CHECK(zebra_seconds(problem, *moves) == Approx(1.4 + 6 * (11 * 1.33 * 7 / 8 + 1.33 * 6 / 8)));
}

TEST_CASE("zebra: moves never make a step slower, and keep to memory") {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    ZebraProblem problem = random_problem(random);
    const auto any = [&](std::uint32_t most) {
      return static_cast<std::uint32_t>(random() % most);
    };
    problem.layers = 1 + any(6);
    problem.microbatches = 1 + any(6);
    problem.attention_devices = 1U << any(3);
    problem.expert_devices = 1U << any(3);
    problem.experts = problem.expert_devices * (1 + any(8));
    for (ZebraSeconds* way : {&problem.forward, &problem.backward})
      way->experts_on_attention = way->experts * (0.5 + 0.125 * any(8));
    problem.attention_room = any(12);
    const auto moves = gather_and_squeeze(problem);
    REQUIRE(moves.ok());
    CHECK(zebra_seconds(problem, *moves) <= zebra_seconds(problem));
    const ExpertChunk chunk = expert_chunk(problem);
    CHECK(std::accumulate(moves->begin(), moves->end(), 0U) * chunk.gained <=
          problem.attention_room);
    for (const std::uint32_t chunks : *moves)
      CHECK(chunks * chunk.lost <= problem.experts / problem.expert_devices);
  }
}

TEST_CASE("zebra: experts that do not fit move although nobody waits for them") {
  ZebraProblem problem = forward_only();
  problem.forward.attention = 2;  // experts wait for attention
  CHECK(gather_and_squeeze(problem)->empty());
  problem.expert_excess = 6;
  CHECK(*gather_and_squeeze(problem) == ExpertMoves{0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1});
  problem.attention_room = 5;
  CHECK_THAT(gather_and_squeeze(problem).error().text, Contains("room for 5"));
}

TEST_CASE("zebra: chunks of one to many devices") {
  ZebraProblem problem;
  problem.attention_devices = 2;
  problem.expert_devices = 6;
  CHECK(expert_chunk(problem).gained == 3);
  CHECK(expert_chunk(problem).lost == 1);
  std::swap(problem.attention_devices, problem.expert_devices);
  CHECK(expert_chunk(problem).gained == 1);
  CHECK(expert_chunk(problem).lost == 3);
}

TEST_CASE("zebra: kinds go to the side where the step is shortest") {
  // The second kind is ten times slower at attention, and as fast with experts.
  const std::vector<ZebraKind> kinds{kind_of(2, 2, 4), kind_of(2, 20, 4)};
  const auto plan = plan_zebra(kinds, small_costs());
  REQUIRE(plan.ok());
  CHECK(plan->attention == std::vector<bool>{true, false});
  CHECK(plan->shares == std::vector<double>{0.5, 0.5});
  CHECK(plan->step <
        zebra_seconds(zebra_problem(kinds, small_costs(), std::vector<bool>{false, true})));
  // A quarter of the tokens a device: the slow kind's attention 5 + 10, experts 1 + 2, 16 times.
  CHECK(expert_parallel_seconds(kinds, small_costs()) == Approx(16 * 18));
}

TEST_CASE("zebra: devices of one side share by their speed") {
  const std::vector<ZebraKind> kinds{kind_of(2, 2, 4), kind_of(1, 40, 4), kind_of(1, 40, 12)};
  const auto plan = plan_zebra(kinds, small_costs());
  REQUIRE(plan.ok());
  CHECK(plan->attention == std::vector<bool>{true, false, false});
  CHECK(plan->shares[1] == Approx(0.75));
  CHECK(plan->shares[2] == Approx(0.25));
}

TEST_CASE("zebra: what cannot be planned is refused by name") {
  const auto refused = [](const std::vector<ZebraKind>& kinds, const ZebraCosts& costs) {
    const auto plan = plan_zebra(kinds, costs);
    REQUIRE_FALSE(plan.ok());
    return plan.error().text;
  };
  CHECK_THAT(refused({kind_of(4, 1, 1)}, small_costs()), Contains("two kinds"));
  CHECK_THAT(refused({kind_of(4, 1, 1), kind_of(0, 1, 1)}, small_costs()), Contains("there is 1"));
  const std::vector<ZebraKind> kinds{kind_of(2, 1, 1), kind_of(2, 2, 1)};
  ZebraCosts costs = small_costs();
  costs.experts = 0;
  CHECK_THAT(refused(kinds, costs), Contains("0 experts"));
  costs = small_costs();
  costs.dense_state_bytes = 2e9;
  CHECK_THAT(refused(kinds, costs), Contains("does not fit any kind"));
  costs = small_costs();
  costs.expert_state_bytes = 1e9;  // 16 experts a device, where one has room
  CHECK_THAT(refused(kinds, costs), Contains("too many"));
  costs = small_costs();
  costs.latency = -1;
  CHECK_THAT(refused(kinds, costs), Contains("not negative"));
  std::vector<ZebraKind> bad = kinds;
  bad[1].experts_forward = -1;
  CHECK_THAT(refused(bad, small_costs()), Contains("kind 1"));
}
