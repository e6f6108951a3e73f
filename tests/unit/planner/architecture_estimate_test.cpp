#include "planner/architecture_estimate.h"

#include "planner/rank_share.h"
#include "tests/support/catch.h"
#include "tests/support/published_models.h"

using namespace troupe;

namespace {

const std::filesystem::path data_folder = TROUPE_SOURCE_DIR "/tests/data";

ArchitectureRun run_of(const char* name, double sequence = 4096) {
  return {published::published_model(data_folder, name), sequence};
}

TrainingCluster h100s() {
  TrainingCluster out;
  out.device = h100_rates();
  return out;
}

Layout layout_of(std::uint64_t data, std::uint64_t batch) {
  Layout out;
  out.data = data;
  out.batch = batch;
  out.flash_attention = out.causal = true;
  return out;
}

}  // namespace

TEST_CASE("a dense block costs the same as an architecture's and as a stack's") {
  const ArchitectureRun run = run_of("llama-3-8b");
  Layout layout = layout_of(2, 8);
  layout.tensor = 4;
  layout.causal = false;
  layout.recompute = Recompute::full;
  const BlockSeconds one = block_seconds(run, 7, layout, {}, h100s());
  const BlockSeconds other =
      block_seconds(block_shape(run.model, 7, run.sequence), layout, {}, h100s());
  CHECK(one.forward == Approx(other.forward));
  CHECK(one.backward == Approx(other.backward));
  CHECK(one.tensor == Approx(other.tensor));
}

TEST_CASE("layouts that cannot run are told in words") {
  Layout layout = layout_of(3, 8);
  layout.tensor = 5;
  layout.context = 3;
  layout.expert = 2;
  const auto faults = layout_faults(run_of("llama-3-8b"), layout);
  REQUIRE(faults.size() == 4);
  CHECK(faults[0] == "5 does not divide the attention heads (32)");
  CHECK(faults[1] == "3 does not divide the sequence (4096)");
  CHECK(faults[2] == "3 does not divide the batch (8)");
  CHECK(faults[3] == "expert parallelism of 2 but the model has no experts; 1 is the only degree");
  Layout experts = layout_of(4, 8);
  experts.expert = 8;
  CHECK(layout_faults(run_of("mixtral-8x7b"), experts) ==
        std::vector<std::string>{"8 does not divide the ranks of a stage (4)"});
}

TEST_CASE("sharding divides the states, groups of it less") {
  const ArchitectureRun run = run_of("llama-3-8b");
  Layout layout = layout_of(64, 64);
  layout.zero = ZeroStage::parameters;
  Framework framework;
  framework.weight_bytes = framework.gradient_bytes = 4;
  framework.optimizer_bytes = 8;
  const double all = static_cast<double>(parameter_count(run.model));
  const StepBytes whole = step_bytes(run, layout, framework);
  CHECK(whole.weights == Approx(all * 4 / 64));
  CHECK(whole.gradients == Approx(all * 4 / 64));
  CHECK(whole.optimizer == Approx(all * 8 / 64));
  layout.shard_group = 8;  // HSDP: 8 groups of 8
  CHECK(step_bytes(run, layout, framework).optimizer == Approx(all * 8 / 8));
  layout.zero = ZeroStage::optimizer;
  const StepBytes grouped = step_bytes(run, layout, framework);
  CHECK(grouped.weights == Approx(all * 4));
  CHECK(grouped.optimizer == Approx(all * 8 / 8));
}

TEST_CASE("experts are shared out over their ranks, what is left over fewer replicas") {
  const ArchitectureRun run = run_of("mixtral-8x7b");
  Layout layout = layout_of(16, 16);
  layout.expert = 8;
  layout.zero = ZeroStage::optimizer;
  double experts = 0;
  for (std::uint32_t i = 0; i < run.model.blocks; ++i)
    experts += static_cast<double>(block_parameters(run.model, i).experts);
  const double dense = static_cast<double>(parameter_count(run.model)) - experts;
  const StepBytes bytes = step_bytes(run, layout, {});
  CHECK(bytes.weights == Approx(2 * (dense + experts / 8)));
  // Two replicas of each expert among 16 ranks.
  CHECK(bytes.optimizer == Approx(12 * (dense / 16 + experts / 8 / 2)));
}

TEST_CASE("each way to recompute keeps less and takes longer than the one before") {
  const ArchitectureRun run = run_of("llama-3-8b", 8192);
  Layout none = layout_of(8, 8);
  none.zero = ZeroStage::parameters;
  Layout alternate = none, half = none, full = none;
  alternate.alternate_products = true;
  half.recompute = full.recompute = Recompute::full;
  half.recomputed_blocks = 0.5;
  std::vector<double> kept, seconds;
  for (const Layout& layout : {none, half, full}) {
    kept.push_back(step_bytes(run, layout, {}).activations);
    seconds.push_back(step_seconds(run, layout, {}, h100s()).compute);
  }
  CHECK(kept[0] > kept[1]);
  CHECK(kept[1] == Approx((kept[0] + kept[2]) / 2));
  CHECK(seconds[1] == Approx((seconds[0] + seconds[2]) / 2));
  // Input of a block: 8192 x 4096 in 16 bits, 32 blocks.
  CHECK(kept[2] == 32.0 * 8192 * 4096 * 2);
  // Queries, attention's output and the way out with the input: 4 x 4096; values 1024; gate 14336.
  CHECK(step_bytes(run, alternate, {}).activations == 32.0 * 8192 * 2 * (4 * 4096 + 1024 + 14336));
  const Seconds again = step_seconds(run, alternate, {}, h100s()).compute;
  CHECK(again > seconds[0]);
  CHECK(again < seconds[2]);
}

TEST_CASE("more parts of a sequence: less attention each, the busiest one least so") {
  const ArchitectureRun run = run_of("llama-3-8b", 131072);
  Layout layout = layout_of(1, 1);
  const Seconds whole = block_seconds(run, 0, layout, {}, h100s()).attention;
  layout.context = 8;
  const Seconds part = block_seconds(run, 0, layout, {}, h100s()).attention;
  // Ring steps of 16384 x 2 x 8 x 128 in 16 bits take less than an eighth of the attention.
  CHECK(part == Approx(whole / 8).epsilon(1e-3));
  layout.context_balanced = false;
  const Seconds busiest = block_seconds(run, 0, layout, {}, h100s()).attention;
  CHECK(busiest == Approx(whole / 8 * (2 - 1.0 / 8)).epsilon(1e-3));
}

TEST_CASE("tokens travel to their experts and back in both directions") {
  const ArchitectureRun run = run_of("mixtral-8x7b");
  Layout layout = layout_of(8, 8);
  layout.expert = 8;
  const TrainingCluster cluster = h100s();
  const BlockSeconds away = block_seconds(run, 0, layout, {}, cluster);
  const Seconds exchange = expert_exchange_seconds({4096, 4096 * 2, 2}, {8, true, 8}, cluster.net);
  Framework hidden;
  hidden.expert_exposed = 0;
  CHECK(away.forward - block_seconds(run, 0, layout, hidden, cluster).forward ==
        Approx(2 * exchange));
}

TEST_CASE("exchanges, rings and broadcasts are bytes over their slowest link") {
  Interconnect net;
  net.intra = 100;
  net.node = 80;
  net.node_achievable = net.ring_achievable = 0.5;
  net.intra_start = net.intra_hop = net.inter_start = 0;
  // 10 tokens of 20 bytes to 2 of 4 ranks each: 3 of 4 copies leave, 300 bytes.
  CHECK(expert_exchange_seconds({10, 20, 2}, {4, true, 4}, net) == Approx(3));
  // Two nodes: the other one has one of two experts in 3 of 4 cases; 5 bytes a second a port.
  CHECK(expert_exchange_seconds({10, 20, 2}, {16, false, 8}, net) == Approx(200 * 0.75 / 5));
  CHECK(ring_step_seconds(300, {4, true, 1}, net) == 3);
  CHECK(ring_step_seconds(300, {4, false, 2}, net) == 15);
  CHECK(ring_step_seconds(300, {1, true, 1}, net) == 0);
  net.inter_start = 0.5;
  // 400 bytes at 40 a second, and 16 times a way round of 16 hops.
  CHECK(owner_broadcast_seconds(400, {16, false, 1}, net) == 10 + 16 * 16 * 0.5);
}

TEST_CASE("a pipeline of an architecture adds up; a sharded step waits for its first gather") {
  const ArchitectureRun run = run_of("deepseek-moe-16b");
  Layout layout = layout_of(8, 64);
  layout.pipeline = 4;
  layout.expert = 8;
  const StepSeconds one = step_seconds(run, layout, {}, h100s());
  layout.batch = 128;
  const StepSeconds two = step_seconds(run, layout, {}, h100s());
  CHECK(two.compute == Approx(2 * one.compute));
  CHECK(two.bubble == Approx(one.bubble));
  CHECK(two.reduction == Approx(one.reduction));
  Layout sharded = layout_of(8, 8);
  sharded.zero = ZeroStage::parameters;
  const StepSeconds step = step_seconds(run_of("llama-3-8b"), sharded, {}, h100s());
  CHECK(step.reduction > 0);
  Framework slow;
  slow.overlaps_gathers = false;
  CHECK(step_seconds(run_of("llama-3-8b"), sharded, slow, h100s()).reduction > step.reduction);
}

TEST_CASE("gradients of experts are reduced as well, with and without sharded states") {
  const ArchitectureRun run = run_of("mixtral-8x7b");
  Layout layout = layout_of(8, 64);
  const Seconds together = step_seconds(run, layout, {}, h100s()).reduction;
  layout.zero = ZeroStage::optimizer;
  CHECK(together == Approx(step_seconds(run, layout, {}, h100s()).reduction).epsilon(0.05));
  layout.zero = ZeroStage::none;
  layout.expert = 8;  // every rank has experts of its own: they are nobody else's
  CHECK(step_seconds(run, layout, {}, h100s()).reduction < together / 4);
}

TEST_CASE("who keeps a shard of the gradients reduces them after every microbatch") {
  Layout layout = layout_of(8, 64);
  layout.zero = ZeroStage::optimizer;
  const Seconds once = step_seconds(run_of("llama-3-8b"), layout, {}, h100s()).reduction;
  layout.zero = ZeroStage::gradients;
  CHECK(step_seconds(run_of("llama-3-8b"), layout, {}, h100s()).reduction > 3 * once);
}

TEST_CASE("groups that share states out reduce experts between them as well") {
  // 64 replicas in groups of 8, 8 or 16 ranks for the experts: nothing of these is shared out, and
  // 8 or 4 ranks hold the same.
  const ArchitectureRun run = run_of("mixtral-8x7b");
  Layout layout = layout_of(64, 64);
  layout.expert = 8;
  layout.shard_group = 8;
  layout.zero = ZeroStage::optimizer;
  const TrainingCluster cluster = h100s();
  const Seconds grouped = step_seconds(run, layout, {}, cluster).reduction;
  double dense = static_cast<double>(parameter_count(run.model)), experts = 0;
  for (std::uint32_t i = 0; i < run.model.blocks; ++i)
    experts += static_cast<double>(block_parameters(run.model, i).experts);
  dense -= experts;
  const Interconnect& net = cluster.net;
  const Group within{8, true, 1}, between{8, false, 8};
  const Seconds wanted = all_gather_seconds(2 * dense, within, net) +
                         reduce_scatter_seconds(2 * dense, within, net) +
                         all_reduce_seconds(2 * dense / 8, between, net) +
                         all_reduce_seconds(2 * experts / 8, between, net);
  CHECK(grouped == Approx(wanted));
}

TEST_CASE("owners that broadcast what they updated send their experts too") {
  const ArchitectureRun run = run_of("mixtral-8x7b");
  Layout layout = layout_of(32, 32);
  layout.expert = 8;
  layout.zero = ZeroStage::optimizer;
  Framework apart, broadcast;
  apart.reduction_hidden = broadcast.reduction_hidden = true;
  broadcast.owners_broadcast = true;
  double experts = 0;
  for (std::uint32_t i = 0; i < run.model.blocks; ++i)
    experts += static_cast<double>(block_parameters(run.model, i).experts);
  const double dense = static_cast<double>(parameter_count(run.model)) - experts;
  const TrainingCluster cluster = h100s();
  const auto sent = [&](double bytes, const Group& group) {
    return owner_broadcast_seconds(bytes, group, cluster.net) -
           all_gather_seconds(bytes, group, cluster.net);
  };
  // Four ranks, 8 apart, own a part each of the same experts.
  CHECK(step_seconds(run, layout, broadcast, cluster).reduction -
            step_seconds(run, layout, apart, cluster).reduction ==
        Approx(sent(2 * dense, {32, false, 1}) + sent(2 * experts / 8, {4, false, 8})));
}

TEST_CASE("stages that are not equal are as large as the largest; interleaved ends hold chunks") {
  const ArchitectureRun run = run_of("llama-3-8b");
  REQUIRE(run.model.blocks == 32);
  Layout layout = layout_of(1, 64);
  layout.recompute = Recompute::full;
  const double input = 4096.0 * 4096 * 2;  // of a block, which is what it keeps
  Framework framework;
  framework.logit_bytes = 0;  // else the loss is the fullest moment
  layout.pipeline = 3;        // 11, 11 and 10 blocks
  CHECK(step_bytes(run, layout, framework).activations == 11 * 3 * input);
  // The last of 4 stages, 4 chunks of 2 blocks: before the first loss 3 x 4 microbatches have
  // passed through its first chunks, and one through its last. Its logits make this the fullest
  // moment.
  layout.pipeline = 4;
  layout.chunks = 4;
  framework.logit_bytes = 64;
  CHECK(step_bytes(run, layout, framework).activations == 2 * (3 * 4 + 1) * input);
}

TEST_CASE("a block's whole gradient is as wide as it is reduced") {
  const ArchitectureRun run = run_of("llama-3-8b");
  Layout layout = layout_of(8, 8);
  layout.zero = ZeroStage::parameters;
  Framework framework;
  framework.logit_bytes = 0;  // else the loss is the fullest moment
  const double narrow = step_bytes(run, layout, framework).working;
  framework.reduced_bytes = 4;
  const RankParameters block = rank_block(run, 0, layout);
  CHECK(step_bytes(run, layout, framework).working - narrow == Approx(2 * block.total()));
}
