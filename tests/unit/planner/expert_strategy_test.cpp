/// Shares of tokens and experts against all that there are, on small clusters.
#include "planner/expert_strategy.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "planner/architecture_profile.h"
#include "planner/device_kinds.h"
#include "planner/expert_costs.h"
#include "planner/plan_changes.h"
#include "planner/trainable.h"
#include "planner/zebra.h"
#include "tests/support/catch.h"
#include "tests/support/published_models.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;
using Catch::Matchers::Contains;

namespace {

using Counts = std::vector<std::uint32_t>;

/// Work in flops alone, so that a device's seconds are flops by its speed. One sequence a
/// microbatch.
struct Problem {
  ModelSpec model;
  ModelProfile profile = round_profile();
  ClusterSpec cluster;
  PlanOptions options = options_of(1);
  PlanRequest request() const { return {model, cluster, profile, options}; }
};

/// A block's dense part takes 1 ms forward and 2 ms backward at speed 1, all its experts
/// `expert_ms` and twice that.
Problem problem(std::uint32_t blocks,
                const std::vector<double>& speeds,
                std::uint32_t batch,
                std::uint32_t experts,
                double expert_ms) {
  Problem out;
  out.model = small_model(blocks);
  out.cluster = cluster_of(speeds);
  out.options.shape.microbatch_count = out.options.shape.batch_size = batch;
  out.options.shape.microbatch_size = 1;
  ExpertPart part;
  for (std::uint32_t block = 0; block < blocks; ++block) part.blocks.push_back(block);
  part.experts = experts;
  part.top_k = 2;
  const double flops = 1e6 * expert_ms;
  part.forward = part.backward_input = part.backward_weight = {flops, 0, 0, 0};
  part.update = {1e3, 0, 0, 0};
  part.gradient_bytes = 16 * 1024;
  part.state_bytes = 4 * part.gradient_bytes;
  part.kept_bytes = 32 * 1024;
  part.workspace_bytes = 4 * 1024;
  part.exchange_bytes = 16 * 1024;
  LayerProfile& block = out.profile.block;
  for (OpCount* count : {&block.forward, &block.backward_input, &block.backward_weight})
    count->matmul_flops += flops;
  block.update.matmul_flops += experts * part.update.matmul_flops;
  block.weight_bytes += experts * part.gradient_bytes;
  block.gradient_bytes += experts * part.gradient_bytes;
  block.optimizer_bytes += 2 * experts * part.gradient_bytes;
  block.saved_bytes += part.kept_bytes;
  block.backward_workspace_bytes += part.workspace_bytes;
  out.profile.experts = part;
  return out;
}

/// Every way to share out `pieces` over `hosts`.
void each_share(std::uint32_t pieces, Counts& share, std::size_t host, const auto& body) {
  if (host + 1 == share.size()) {
    share[host] = pieces;
    body(share);
    return;
  }
  for (std::uint32_t count = 0; count <= pieces; ++count) {
    share[host] = count;
    each_share(pieces - count, share, host + 1, body);
  }
}

void each_share(std::uint32_t pieces, std::size_t hosts, const auto& body) {
  Counts share(hosts);
  each_share(pieces, share, 0, body);
}

/// What a problem of the fixture takes, from its numbers.
class Hand {
 public:
  explicit Hand(const Problem& given) : given_(given), part_(*given.profile.experts) {
    for (const DeviceSpec& device : given.cluster.devices)
      speeds_.push_back(device.rates.matmul_f32);
  }
  double layers() const { return given_.model.blocks; }
  double experts() const { return part_.experts; }
  double batch() const { return given_.options.shape.batch_size; }
  Seconds dense(std::size_t d) const {
    return (given_.profile.block.forward.matmul_flops - part_.forward.matmul_flops) / speeds_[d];
  }
  /// Embedding and head.
  Seconds once(std::size_t d) const {
    return (given_.profile.embedding.forward.matmul_flops +
            given_.profile.head.forward.matmul_flops) /
           speeds_[d];
  }
  Seconds expert(std::size_t d) const { return part_.forward.matmul_flops / speeds_[d]; }
  Seconds update(std::size_t d, std::uint32_t sequences, std::uint32_t held) const {
    const LayerProfile& block = given_.profile.block;
    double dense = 0;
    for (const LayerProfile* layer : {&given_.profile.embedding, &given_.profile.head})
      dense += layer->norm.matmul_flops + layer->update.matmul_flops;
    dense += layers() * (block.norm.matmul_flops + block.update.matmul_flops -
                         experts() * part_.update.matmul_flops);
    return ((sequences > 0 ? dense : 0) + held * part_.update.matmul_flops) / speeds_[d];
  }
  Seconds exchange(double sequences) const {
    return transfer(sequences * static_cast<double>(part_.exchange_bytes));
  }
  Seconds ring(const Counts& sequences) const {
    const auto members = static_cast<double>(
        std::count_if(sequences.begin(), sequences.end(), [](auto n) { return n > 0; }));
    if (members < 2) return 0;
    double bytes = static_cast<double>(given_.profile.embedding.gradient_bytes +
                                       given_.profile.head.gradient_bytes);
    bytes += layers() * (static_cast<double>(given_.profile.block.gradient_bytes) -
                         experts() * static_cast<double>(part_.gradient_bytes));
    return 2 * (members - 1) * transfer(bytes / members);
  }
  /// In KiB, of a device under expert parallelism.
  double kib(double round, std::uint32_t sequences, std::uint32_t experts_of_layer) const {
    // Embedding and head of 256 KiB, blocks of 128 KiB, times 4 for gradients and moments; 64 KiB
    // kept by each layer, 2 x 16 on their way.
    const double dense =
        4 * (256 + 256 + 128 * layers()) + 8 + sequences * (64 * (layers() + 2) + 32);
    const double each = layers() * (64 + 32 * round / experts()) + 4 * round / experts();
    return (sequences > 0 ? dense : 0) + experts_of_layer * each;
  }

 private:
  Seconds transfer(double bytes) const {
    const LinkSpec& link = given_.cluster.same_process;
    return link.latency + (link.bandwidth > 0 ? bytes / link.bandwidth : 0);
  }
  const Problem& given_;
  const ExpertPart& part_;
  std::vector<double> speeds_;
};

/// Expert parallelism with these shares; forward and twice that backward, four exchanges a layer.
Seconds round_by_hand(const Hand& hand, const Counts& sequences, const Counts& experts) {
  const double all = std::accumulate(sequences.begin(), sequences.end(), 0.0);
  Seconds dense = 0, once = 0, expert = 0;
  double most = 0;
  std::size_t used = 0;
  for (std::size_t d = 0; d < sequences.size(); ++d) {
    const double part = experts[d] / hand.experts();
    dense = std::max(dense, sequences[d] * hand.dense(d));
    once = std::max(once, sequences[d] * hand.once(d));
    expert = std::max(expert, all * part * hand.expert(d));
    most = std::max({most, sequences[d] * (1 - part), (all - sequences[d]) * part});
    used += sequences[d] + experts[d] > 0 ? 1 : 0;
  }
  return 3 * (hand.layers() * (dense + expert) + once) +
         4 * hand.layers() * (used > 1 ? hand.exchange(most) : 0);
}

/// The least step over all sizes of round and all shares.
Seconds parallel_by_brute_force(const Problem& given) {
  const Hand hand(given);
  const std::size_t devices = given.cluster.devices.size();
  Seconds least = 1e300;
  const std::uint32_t batch = given.options.shape.batch_size;
  for (std::uint32_t round = 1; round <= batch; ++round)
    each_share(round, devices, [&](const Counts& sequences) {
      each_share(given.profile.experts->experts, devices, [&](const Counts& experts) {
        for (std::size_t d = 0; d < devices; ++d)
          if (1024 * hand.kib(round, sequences[d], experts[d]) >
              static_cast<double>(given.cluster.devices[d].memory))
            return;
        Seconds step = batch / round * round_by_hand(hand, sequences, experts);
        Seconds last = batch % round > 0 ? 1e300 : 0;
        if (last > 0)
          each_share(batch % round, devices, [&](const Counts& some) {
            for (std::size_t d = 0; d < devices; ++d)
              if (some[d] > sequences[d]) return;
            // Who sits out the last round is still part of it.
            last = std::min(last, round_by_hand(hand, some, experts));
          });
        Seconds update = 0;
        for (std::size_t d = 0; d < devices; ++d)
          update = std::max(update, hand.update(d, sequences[d], experts[d] * given.model.blocks));
        least = std::min(least, step + last + hand.ring(sequences) + update);
      });
    });
  return least;
}

/// Zebra on these sides with these shares, the exchange as its busiest device has it.
Seconds zebra_by_hand(const Problem& given,
                      std::uint32_t round,
                      const Counts& sequences,
                      const Counts& experts) {
  const Hand hand(given);
  ZebraProblem out;
  out.layers = given.model.blocks;
  // The side of the experts is as slow as its device with most of them.
  const std::uint32_t most_experts = *std::max_element(experts.begin(), experts.end());
  out.microbatches = (given.options.shape.batch_size + round - 1) / round;
  out.attention_devices = out.expert_devices = 0;
  double most = 0;
  for (std::size_t d = 0; d < sequences.size(); ++d) {
    out.attention_devices += sequences[d] > 0 ? 1 : 0;
    out.expert_devices += experts[d] > 0 ? 1 : 0;
    most = std::max({most, double{1} * sequences[d], round * experts[d] / hand.experts()});
  }
  out.experts = most_experts * out.expert_devices;
  for (std::size_t d = 0; d < sequences.size(); ++d) {
    const Seconds all = round * hand.expert(d);
    ZebraSeconds& way = out.forward;
    way.attention = std::max(way.attention, sequences[d] * hand.dense(d));
    way.head = std::max(way.head, sequences[d] * hand.once(d));
    way.experts = std::max(way.experts, all * experts[d] / hand.experts());
    if (sequences[d] > 0)
      way.experts_on_attention =
          std::max(way.experts_on_attention, all * most_experts / hand.experts());
  }
  out.forward.exchange = hand.exchange(most);
  out.backward = {2 * out.forward.attention, 2 * out.forward.experts,
                  2 * out.forward.experts_on_attention, out.forward.exchange, 2 * out.forward.head};
  out.attention_room = 1000;
  Seconds least = 1e300;
  for (const ExpertMoves& moves : {ExpertMoves{}, gather_and_squeeze(out).value()}) {
    const ExpertChunk chunk = moves.empty() ? ExpertChunk{0, 0} : expert_chunk(out);
    Seconds update = 0;
    bool enough = true;
    for (std::size_t d = 0; d < sequences.size(); ++d) {
      std::uint32_t held = out.layers * experts[d];
      for (const std::uint32_t chunks : moves) {
        if (experts[d] > 0) {
          enough = enough && chunks * chunk.lost <= experts[d];
          held -= chunks * chunk.lost;
        }
        if (sequences[d] > 0) held += chunks * chunk.gained;
      }
      update = std::max(update, hand.update(d, sequences[d], held));
    }
    if (enough) least = std::min(least, zebra_seconds(out, moves) + update);
  }
  return least + hand.ring(sequences);
}

/// The least step over all assignments of kinds to sides, sizes of round and shares.
Seconds zebra_by_brute_force(const Problem& given) {
  const auto kinds = device_kinds(given.cluster);
  const std::uint32_t count = *std::max_element(kinds.begin(), kinds.end()) + 1;
  const std::uint32_t experts = given.profile.experts->experts;
  Seconds least = 1e300;
  for (std::uint32_t sides = 1; sides + 1 < (1U << count); ++sides)
    for (std::uint32_t round = 1; round <= given.options.shape.batch_size; ++round)
      each_share(round, kinds.size(), [&](const Counts& sequences) {
        for (std::size_t d = 0; d < kinds.size(); ++d)
          if ((sides >> kinds[d] & 1U) == 0 && sequences[d] > 0) return;
        each_share(experts, kinds.size(), [&](const Counts& held) {
          for (std::size_t d = 0; d < kinds.size(); ++d)
            if ((sides >> kinds[d] & 1U) != 0 && held[d] > 0) return;
          least = std::min(least, zebra_by_hand(given, round, sequences, held));
        });
      });
  return least;
}

/// Kinds of speed 1 to 4, their links slow to fast.
Problem random_problem(std::mt19937& random, std::uint32_t most_devices) {
  const auto any = [&](std::uint32_t most) {
    return 1 + static_cast<std::uint32_t>(random() % most);
  };
  std::vector<double> speeds(1 + any(most_devices - 1));
  for (double& speed : speeds) speed = any(4);
  Problem out = problem(any(3), speeds, any(4), 1 + any(4), any(4));
  out.cluster.same_process = {1e-6 * any(50), 1e8 * std::pow(10.0, any(3) - 1)};
  return out;
}

void check_whole(const StrategyOutcome& outcome, const Problem& given) {
  REQUIRE(outcome.experts);
  const ExpertPlan& plan = *outcome.experts;
  double shares = 0;
  std::uint32_t sequences = 0;
  Counts experts(given.model.blocks);
  for (std::size_t d = 0; d < plan.devices.size(); ++d) {
    const ExpertDevice& device = plan.devices[d];
    shares += device.share;
    sequences += device.sequences;
    for (std::size_t layer = 0; layer < experts.size(); ++layer)
      experts[layer] += device.experts[layer];
    CHECK(device.bytes <= given.cluster.devices[d].memory);
    CHECK(device.busy <= outcome.step * (1 + 1e-9));
  }
  CHECK(shares == Approx(1));
  CHECK(sequences == plan.round);
  for (const std::uint32_t count : experts) CHECK(count == given.profile.experts->experts);
  CHECK(outcome.step == plan.step);
  CHECK(outcome.memory_share <= 1);
  CHECK(outcome.bubble >= 0);
}

}  // namespace

TEST_CASE("expert-parallel: tokens and experts as in the best of all shares") {
  for (std::uint32_t seed = 0; seed < 120; ++seed) {
    std::mt19937 random(seed);
    const Problem given = random_problem(random, 3);
    INFO("seed " << seed);
    const StrategyOutcome outcome = expert_parallel_outcome(given.request());
    check_whole(outcome, given);
    CHECK(outcome.step == Approx(parallel_by_brute_force(given)).epsilon(1e-9));
  }
}

TEST_CASE("expert-parallel within little memory: the best of all shares that fit") {
  int fitting = 0;
  for (std::uint32_t seed = 0; seed < 250; ++seed) {
    std::mt19937 random(seed);
    Problem given = random_problem(random, 3);
    for (DeviceSpec& device : given.cluster.devices)
      device.memory = (1500 + random() % 2500) * 1024;
    INFO("seed " << seed);
    const StrategyOutcome outcome = expert_parallel_outcome(given.request());
    const Seconds least = parallel_by_brute_force(given);
    CHECK(outcome.refused.has_value() == (least > 1e200));
    if (outcome.refused) continue;
    check_whole(outcome, given);
    ++fitting;
    CHECK(outcome.step == Approx(least).epsilon(1e-9));
  }
  CHECK(fitting > 100);
}

TEST_CASE("expert-parallel with too many shares to try: near the best of them") {
  int best = 0;
  constexpr int all = 30;
  for (std::uint32_t seed = 0; seed < all; ++seed) {
    std::mt19937 random(seed);
    std::vector<double> speeds(3);
    for (double& speed : speeds) speed = 1.0 + static_cast<double>(random() % 4);
    Problem given = problem(2, speeds, 4, 24 + static_cast<std::uint32_t>(random() % 9),
                            1.0 + static_cast<double>(random() % 4));
    given.cluster.same_process = {1e-6, 1e8 * std::pow(10.0, random() % 3)};
    for (DeviceSpec& device : given.cluster.devices)
      device.memory = (3500 + random() % 6000) * 1024;
    INFO("seed " << seed);
    const StrategyOutcome outcome = expert_parallel_outcome(given.request());
    const Seconds least = parallel_by_brute_force(given);
    CHECK(outcome.refused.has_value() == (least > 1e200));
    if (outcome.refused) continue;
    check_whole(outcome, given);
    CHECK(outcome.step >= least * (1 - 1e-9));
    CHECK(outcome.step <= 1.02 * least);
    best += outcome.step <= least * (1 + 1e-9) ? 1 : 0;
  }
  CAPTURE(best);
  CHECK(best >= 0.8 * all);
}

TEST_CASE("zebra: kinds on sides and experts as in the best of all assignments") {
  int tried = 0;
  for (std::uint32_t seed = 0; seed < 160; ++seed) {
    std::mt19937 random(seed);
    const Problem given = random_problem(random, 4);
    INFO("seed " << seed);
    const StrategyOutcome outcome = zebra_outcome(given.request());
    const auto kinds = device_kinds(given.cluster);
    if (*std::max_element(kinds.begin(), kinds.end()) == 0) {
      CHECK_THAT(outcome.refused.value().text, Contains("nearest: expert-parallel"));
      continue;
    }
    ++tried;
    check_whole(outcome, given);
    CHECK(outcome.step == Approx(zebra_by_brute_force(given)).epsilon(1e-9));
  }
  CHECK(tried >= 100);
}

TEST_CASE("expert-parallel on devices of one kind is the equal split") {
  Problem given = problem(3, {2, 2, 2, 2}, 4, 8, 3);
  given.cluster.same_process = {1e-5, 1e9};
  const StrategyOutcome outcome = expert_parallel_outcome(given.request());
  check_whole(outcome, given);
  CHECK(outcome.experts->round == 4);
  for (const ExpertDevice& device : outcome.experts->devices) {
    CHECK(device.sequences == 1);
    CHECK(device.experts == Counts(3, 2));
    CHECK(device.busy == Approx(outcome.experts->devices.front().busy));
  }
  // The four sequences of a round on one device, as planner/zebra.h counts them.
  const Hand hand(given);
  ZebraKind kind{4,
                 1e9,
                 4 * hand.dense(0),
                 8 * hand.dense(0),
                 4 * hand.expert(0),
                 8 * hand.expert(0),
                 4 * hand.once(0),
                 8 * hand.once(0)};
  ZebraCosts costs;
  costs.layers = 3;
  costs.experts = 8;
  costs.exchange_bytes = 4 * 16 * 1024;
  costs.bandwidth = 1e9;
  costs.latency = 1e-5;
  CHECK(outcome.step == Approx(expert_parallel_seconds({kind}, costs) + outcome.experts->reduce +
                               outcome.experts->update));
  CHECK(outcome.bubble < 0.1);
}

TEST_CASE("faster devices get more sequences, roomier ones more experts") {
  Problem given = problem(2, {3, 1}, 4, 8, 1);
  given.cluster.same_process = {0, 1e12};
  const StrategyOutcome free = expert_parallel_outcome(given.request());
  check_whole(free, given);
  const auto& devices = free.experts->devices;
  CHECK(devices[0].sequences == 3);
  CHECK(devices[1].sequences == 1);
  CHECK(devices[0].experts == Counts{6, 6});
  CHECK(devices[1].experts == Counts{2, 2});
  // Without two of its three sequences (256 KiB kept, 2 x 16 KiB on their way), and six experts of
  // both layers keeping of one sequence instead of four (32 / 8 KiB), it needs 720 KiB less.
  given.cluster.devices[0].memory = devices[0].bytes - 736 * 1024;
  const StrategyOutcome tight = expert_parallel_outcome(given.request());
  check_whole(tight, given);
  CHECK(tight.experts->devices[0].experts.front() < 6);
}

TEST_CASE("a node behind a slow link gets nothing") {
  Problem given = problem(2, {2, 2, 1, 1}, 6, 6, 2);
  given.cluster.nodes = {{"near", true}, {"far", true}};
  given.cluster.devices[2].node = given.cluster.devices[3].node = NodeId{1};
  given.cluster.same_process = {1e-6, 1e10};
  given.cluster.between_processes = {1e-6, 1e10};
  CHECK(expert_parallel_outcome(given.request()).devices_used == 4);
  given.cluster.between_processes = {1e-3, 1e6};
  const StrategyOutcome outcome = expert_parallel_outcome(given.request());
  check_whole(outcome, given);
  CHECK(outcome.devices_used == 2);
  CHECK_FALSE(outcome.experts->devices[2].used());
  // Zebra has to send its tokens over that link.
  CHECK(zebra_outcome(given.request()).experts->exchange > 1e-3);
}

TEST_CASE("what cannot be planned with experts is refused with the nearest that can") {
  const auto refused = [](const StrategyOutcome& outcome) {
    REQUIRE(outcome.refused);
    return outcome.refused.value();
  };
  Problem given = problem(2, {2, 1}, 2, 4, 2);
  given.profile.experts.reset();
  for (const Strategy strategy : {Strategy::zebra, Strategy::expert_parallel}) {
    const Error none = refused(run_strategy(strategy, given.request()));
    CHECK(none.code == ErrorCode::invalid_input);
    CHECK_THAT(none.text, Contains("no experts") && Contains("nearest: auto"));
  }
  given = problem(2, {2, 2}, 2, 4, 2);
  CHECK_THAT(refused(run_strategy(Strategy::zebra, given.request())).text,
             Contains("one kind; nearest: expert-parallel"));
  CHECK(run_strategy(Strategy::expert_parallel, given.request()).experts);
  std::vector<double> kinds(17);
  std::iota(kinds.begin(), kinds.end(), 1.0);
  given = problem(1, kinds, 2, 4, 2);
  CHECK_THAT(refused(zebra_outcome(given.request())).text, Contains("of 16 at most"));
  given = problem(2, {2, 1}, 2, 4, 2);
  given.cluster.devices[1].rates = {};
  for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head})
    given.cluster.devices[1].measured[kind] = {1, 1, 1, 1, 1};
  CHECK_THAT(refused(zebra_outcome(given.request())).text, Contains("dev1 has measured layers"));
}

TEST_CASE("too little memory is refused with a change that fits") {
  int refused = 0;
  for (std::uint32_t seed = 0; seed < 60; ++seed)
    for (const Strategy strategy : {Strategy::zebra, Strategy::expert_parallel}) {
      INFO("seed " << seed << ", " << to_string(strategy));
      std::mt19937 random(seed);
      Problem given = random_problem(random, 4);
      for (DeviceSpec& device : given.cluster.devices)
        device.memory = (700 + random() % 1500) * 1024;
      const StrategyOutcome outcome = run_strategy(strategy, given.request());
      if (!outcome.refused || outcome.refused->code != ErrorCode::does_not_fit) continue;
      ++refused;
      const std::string& text = outcome.refused->text;
      INFO(text);
      CHECK_THAT(text, Contains("plan: does not fit: dev") && Contains(", short by "));
      REQUIRE_THAT(text, Contains("; memory of dev"));
      // Taken at its word.
      for (DeviceSpec& device : given.cluster.devices) {
        const std::string words = device.name + " at least ";
        const auto at = text.find(words);
        if (at != std::string::npos)
          device.memory = 1024 * std::stoull(text.substr(at + words.size()));
      }
      check_whole(run_strategy(strategy, given.request()), given);
    }
  CHECK(refused >= 20);
}

TEST_CASE("experts that do not fit their side go to attention devices") {
  Problem given = problem(2, {4, 1, 1}, 2, 4, 0.1);
  const StrategyOutcome free = zebra_outcome(given.request());
  REQUIRE(free.experts);
  REQUIRE(free.experts->devices[0].sequences > 0);
  REQUIRE_FALSE(free.experts->devices[0].holds_experts());
  // One expert less than each of the slow devices has.
  const Bytes full = free.experts->devices[1].bytes;
  given.cluster.devices[1].memory = given.cluster.devices[2].memory = full - 64 * 1024;
  const StrategyOutcome outcome = zebra_outcome(given.request());
  check_whole(outcome, given);
  CHECK(outcome.experts->devices[0].holds_experts());
  CHECK(std::accumulate(outcome.experts->moves.begin(), outcome.experts->moves.end(), 0U) > 0);
}

TEST_CASE("reasons are given for experts apart as for any plan") {
  const Problem given = problem(2, {4, 1}, 4, 4, 2);
  for (const Strategy strategy : {Strategy::zebra, Strategy::expert_parallel}) {
    const StrategyOutcome outcome = run_strategy(strategy, given.request());
    const PlanReasons reasons = reasons_of(outcome, given.request());
    CHECK(reasons.busy == outcome.slowest_busy);
    REQUIRE(reasons.changes.size() >= 3);
    for (const PlanChange& change : reasons.changes) {
      REQUIRE(change.step);
      CHECK(*change.step <= outcome.step * (1 + 1e-9));
    }
  }
}

TEST_CASE("HeterMoE: zebra on A40 beside V100 beats expert parallelism on long sequences") {
  // Mixtral-D2 of the paper's table 2 over its cluster O1, 100 Gb/s.
  Architecture model = published::published_model(TROUPE_SOURCE_DIR "/tests/data", "mixtral-8x7b");
  model.blocks = 6;
  model.width = 1024;
  model.attention.heads = model.attention.kv_heads = 8;
  model.moe.experts = 18;
  model.moe.ffn_width = 3584;
  REQUIRE(validate(model).ok());
  PlanOptions options;
  options.shape.batch_size = options.shape.microbatch_count = 96;
  options.shape.sequence_length = 32768;
  options.shape.compute = DType::bf16;
  ClusterSpec cluster = cluster_of(std::vector<double>(12, 1), 48_GiB);
  cluster.same_process = cluster.between_processes = {12e-6, 0.85 * 100e9 / 8};
  for (std::size_t d = 0; d < 12; ++d) {
    DeviceRates& rates = cluster.devices[d].rates;
    rates = {30e12, 0.86 * 149.7e12, 37e12, 0.8 * 696e9, 2.5e-6, 0};
    if (d < 6) continue;
    cluster.devices[d].memory = 32_GiB;
    rates = {15e12, 0.86 * 125e12, 15e12, 0.8 * 900e9, 2.5e-6, 0};
    // FlashAttention-2 runs on Ampere and later; what older cards have is half as fast: for each
    // pair 6 and 8 operations forward and backward beside 7 products of 2 x 128.
    rates.vector_f32 = (6 + 8) * rates.matmul_bf16 / (7 * 2 * 128);
  }
  const auto profile_at = [&](const StepShape& shape) {
    return architecture_profile(model, shape);
  };
  const ModelSpec spec = stand_in(model);
  const ModelProfile profile = profile_at(options.shape);
  const PlanRequest request{spec, cluster, profile, options, profile_at};
  const StrategyOutcome zebra = zebra_outcome(request);
  const StrategyOutcome parallel = expert_parallel_outcome(request);
  REQUIRE(zebra.experts);
  REQUIRE(parallel.experts);
  CHECK(zebra.experts->devices.front().sequences > 0);
  CHECK(zebra.experts->devices.back().sequences == 0);
  const double gain = parallel.step / zebra.step;
  // The paper's 1.89, a mean over models, is over equal shares: one sequence on each device, 1.5
  // experts of a layer. Flat rates, which know no losses with shape, give 1.5.
  const ExpertCosts costs = expert_costs(request).value();
  const auto experts = expert_seconds(request, costs, 12);
  std::vector<ZebraKind> kinds;
  for (std::size_t k = 0; k < 2; ++k) {
    const WaySeconds layer = costs.kinds[k].layer, once = costs.kinds[k].once;
    kinds.push_back({6, 1e12, 12 * layer.forward, 12 * layer.backward, experts[k].forward,
                     experts[k].backward, 12 * once.forward, 12 * once.backward});
  }
  ZebraCosts equal;
  equal.layers = 6;
  equal.experts = 18;
  equal.microbatches = 8;
  equal.exchange_bytes = 12 * costs.exchange;
  equal.bandwidth = cluster.same_process.bandwidth;
  equal.latency = cluster.same_process.latency;
  const double over_equal =
      (expert_parallel_seconds(kinds, equal) + parallel.experts->reduce) / zebra.step;
  CAPTURE(gain, over_equal, parallel.step, zebra.step);
  CHECK(gain > 1);
  CHECK(over_equal > gain);
  CHECK(over_equal > 1.89 / 1.3);
  CHECK(over_equal < 1.89 * 1.3);
}
