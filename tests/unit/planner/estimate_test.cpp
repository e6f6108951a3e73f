#include "planner/estimate.h"

#include <limits>

#include "tests/support/catch.h"

using namespace troupe;

namespace {

TransformerStack small_model() {
  TransformerStack model;
  model.layers = 8;
  model.block.hidden = 1024;
  model.block.heads = model.block.kv_heads = 16;
  model.block.ffn = 4096;
  model.block.sequence = 1024;
  model.block.vocabulary = 32768;
  return model;
}

Layout layout_of(std::uint64_t tensor, std::uint64_t pipeline, std::uint64_t data) {
  Layout out;
  out.tensor = tensor;
  out.pipeline = pipeline;
  out.data = data;
  out.microbatch = 2;
  out.batch = 32;
  return out;
}

TrainingCluster cluster_of(double devices_per_node = 8) {
  TrainingCluster out;
  out.device = a100_rates();
  out.net.devices_per_node = devices_per_node;
  return out;
}

/// Links of no latency and no end of bandwidth.
TrainingCluster ideal_cluster() {
  TrainingCluster out = cluster_of();
  out.net.intra = out.net.node = std::numeric_limits<double>::infinity();
  out.net.intra_start = out.net.intra_hop = out.net.inter_start = out.net.transfer_start = 0;
  return out;
}

double sum_of(const StepSeconds& step) {
  return step.compute + step.tensor + step.bubble + step.transfer + step.reduction + step.optimizer;
}

}  // namespace

TEST_CASE("one device has neither traffic nor bubble") {
  const StepSeconds step = step_seconds(small_model(), layout_of(1, 1, 1), {}, cluster_of());
  CHECK(step.tensor == 0);
  CHECK(step.bubble == Approx(0).margin(1e-12));
  CHECK(step.transfer == 0);
  CHECK(step.reduction == 0);
  CHECK(step.total() == Approx(step.compute + step.optimizer));
}

TEST_CASE("links of infinite bandwidth cost nothing in any layout") {
  for (const ZeroStage zero : {ZeroStage::none, ZeroStage::optimizer, ZeroStage::parameters}) {
    Layout layout = layout_of(2, zero == ZeroStage::parameters ? 1 : 2, 4);
    layout.zero = zero;
    TrainingCluster cluster = ideal_cluster();
    cluster.net.ring_hop_within = cluster.net.ring_hop_between = 0;
    const StepSeconds step = step_seconds(small_model(), layout, {}, cluster);
    CHECK(step.tensor == 0);
    CHECK(step.transfer == 0);
    CHECK(step.reduction == 0);
    CHECK(step.total() == Approx(step.compute + step.bubble + step.optimizer));
  }
}

TEST_CASE("terms add up and none is negative, in every layout") {
  for (const std::uint64_t tensor : {1, 2, 8})
    for (const std::uint64_t pipeline : {1, 2, 4})
      for (const std::uint64_t data : {1, 4})
        for (const Recompute recompute : {Recompute::none, Recompute::full}) {
          Layout layout = layout_of(tensor, pipeline, data);
          layout.recompute = recompute;
          const StepSeconds step = step_seconds(small_model(), layout, {}, cluster_of(4));
          CHECK(step.total() == Approx(sum_of(step)));
          for (const double term : {step.compute, step.tensor, step.transfer, step.reduction})
            CHECK(term >= 0);
          CHECK(step.bubble >= -1e-9);
          CHECK((step.tensor > 0) == (tensor > 1));
          CHECK((step.transfer > 0) == (pipeline > 1));
        }
}

TEST_CASE("the bubble of equal stages is one microbatch on every other stage") {
  TransformerStack model = small_model();
  model.block.vocabulary = 0;  // no ends
  const TrainingCluster cluster = ideal_cluster();
  Layout layout = layout_of(1, 4, 1);
  const StepSeconds step = step_seconds(model, layout, {}, cluster);
  // 16 microbatches, and 3 more on the way
  const double bubble = step.bubble / (step.compute / 16);
  CHECK(bubble == Approx(3).epsilon(0.02));
  layout.chunks = 2;
  CHECK(step_seconds(model, layout, {}, cluster).bubble == Approx(step.bubble / 2));
  // With as many microbatches as stages are passed, the uneven stage sets the pace.
  layout.chunks = 1;
  layout.stage_blocks = {1, 2, 2, 3};
  const StepSeconds uneven = step_seconds(model, layout, {}, cluster);
  CHECK(uneven.compute == Approx(1.5 * step.compute).epsilon(0.02));
  CHECK(uneven.bubble == Approx(5.0 / 6 * step.bubble).epsilon(0.02));
}

TEST_CASE("a slower host, link or kernel never makes a step faster") {
  const TransformerStack model = small_model();
  const Layout layout = layout_of(2, 2, 4);
  const double plain = step_seconds(model, layout, {}, cluster_of()).total();
  Framework slow;
  slow.host_per_op = 1e-3;
  CHECK(step_seconds(model, layout, slow, cluster_of()).total() > plain);
  TrainingCluster cluster = cluster_of();
  cluster.net.node /= 10;
  CHECK(step_seconds(model, layout, {}, cluster).total() > plain);
  cluster = cluster_of();
  cluster.device.peak /= 2;
  CHECK(step_seconds(model, layout, {}, cluster).total() > plain);
  Layout longer = layout;
  longer.batch *= 2;
  CHECK(step_seconds(model, longer, {}, cluster_of()).total() > plain);
  longer = layout;
  longer.recompute = Recompute::full;
  CHECK(step_seconds(model, longer, {}, cluster_of()).total() > plain);
}

TEST_CASE("efficiency divides the time of blocks and ends, and nothing else") {
  Framework half;
  half.efficiency = 0.5;
  const Layout layout = layout_of(2, 2, 4);
  const StepSeconds full = step_seconds(small_model(), layout, {}, cluster_of());
  const StepSeconds slow = step_seconds(small_model(), layout, half, cluster_of());
  CHECK(slow.compute == Approx(2 * full.compute));
  CHECK(slow.tensor == Approx(2 * full.tensor));
  CHECK(slow.bubble == Approx(2 * full.bubble));
  CHECK(slow.transfer == Approx(full.transfer));
  CHECK(slow.reduction == Approx(full.reduction));
  CHECK(slow.optimizer == Approx(full.optimizer));
}

TEST_CASE("a block is never faster than its host, and slower by it where the host waits") {
  const Layout layout = layout_of(1, 1, 1);
  const BlockShape shape = small_model().block;
  const BlockSeconds device = block_seconds(shape, layout, {}, cluster_of());
  Framework framework;
  framework.host_per_op = 1e-3;
  const BlockSeconds bound = block_seconds(shape, layout, framework, cluster_of());
  CHECK(bound.forward == Approx(24e-3));
  CHECK(bound.backward == Approx(44e-3));
  framework.waits_for_ops = true;
  const BlockSeconds waiting = block_seconds(shape, layout, framework, cluster_of());
  CHECK(waiting.forward == Approx(device.forward + 24e-3));
  CHECK(waiting.backward == Approx(device.backward + 44e-3));
}

TEST_CASE("a tensor group over nodes pays the steps of its rings, and the host its ranks") {
  const BlockShape shape = small_model().block;
  TrainingCluster cluster = cluster_of(8);
  cluster.net.ring_hop_within = cluster.net.ring_hop_between = 1e-3;
  const BlockSeconds rings = block_seconds(shape, layout_of(16, 1, 1), {}, cluster);
  CHECK(rings.forward == Approx(4 * 15e-3));
  CHECK(rings.backward == Approx(4 * 15e-3));
  Framework framework;
  framework.host_per_rank = 68e-3;
  // On one node nothing is added, on two a share of 24 and of 44 ops for each of 8 ranks.
  CHECK(block_seconds(shape, layout_of(8, 1, 1), framework, cluster).forward ==
        block_seconds(shape, layout_of(8, 1, 1), {}, cluster).forward);
  const BlockSeconds ranks = block_seconds(shape, layout_of(8, 1, 2), framework, cluster);
  CHECK(ranks.forward == Approx(8 * 24e-3));
  CHECK(ranks.backward == Approx(8 * 44e-3));
}

TEST_CASE("gradients reduce beside the last backward, parameters gather beside arithmetic") {
  const TransformerStack model = small_model();
  Layout layout = layout_of(1, 1, 16);
  layout.batch = 32;
  TrainingCluster cluster = cluster_of();
  Framework framework;
  const double exposed = step_seconds(model, layout, framework, cluster).reduction;
  framework.reduction_hidden = true;
  const double beside = step_seconds(model, layout, framework, cluster).reduction;
  CHECK(beside < exposed);
  cluster.net.node *= 1000;
  CHECK(step_seconds(model, layout, framework, cluster).reduction == 0);

  layout.zero = ZeroStage::parameters;
  cluster.net.ring_hop_within = cluster.net.ring_hop_between = 0;
  CHECK(step_seconds(model, layout, framework, cluster).reduction == 0);
  framework.overlaps_gathers = false;
  CHECK(step_seconds(model, layout, framework, cluster).reduction > 0);
}

TEST_CASE("bytes of a stage by hand") {
  const TransformerStack model = small_model();
  Framework framework;
  framework.logit_bytes = 4;
  Layout layout = layout_of(1, 1, 4);
  const double block = 12.0 * 1024 * 1024 + 13 * 1024;
  const double table = 32768.0 * 1024;
  StepBytes bytes = step_bytes(model, layout, framework);
  CHECK(bytes.weights == Approx(2 * (8 * block + table)));
  CHECK(bytes.gradients == Approx(2 * (8 * block + table)));
  CHECK(bytes.optimizer == Approx(12 * (8 * block + table)));
  layout.zero = ZeroStage::optimizer;
  CHECK(step_bytes(model, layout, framework).optimizer == Approx(bytes.optimizer / 4));
  CHECK(step_bytes(model, layout, framework).weights == Approx(bytes.weights));
  layout.zero = ZeroStage::parameters;
  CHECK(step_bytes(model, layout, framework).weights == Approx(bytes.weights / 4));
  // Korthikanti et al., table 2: s b h (34 + 5 a s / h) of each block, one microbatch of two.
  const double unit = 2.0 * 1024 * 1024;
  CHECK(bytes.activations == Approx(8 * unit * (34 + 5 * 16)));
  // The embedding's mask, the last norm and the output layer's input, f32 logits.
  CHECK(bytes.ends == Approx(unit + 4 * unit + 4 * 2 * 1024 * 32768.0));
  CHECK(bytes.total() ==
        Approx(bytes.weights + bytes.gradients + bytes.optimizer + bytes.activations + bytes.ends));
}

TEST_CASE("L006 a step needs what its fullest stage needs, with 4, 3, 2 and 1 microbatches held") {
  TransformerStack model = small_model();
  model.tied = false;
  const Framework framework;
  Layout layout = layout_of(1, 4, 1);
  layout.stage_blocks = {2, 2, 2, 2};
  double most = 0;
  double last = std::numeric_limits<double>::infinity();
  for (std::uint64_t stage = 0; stage < 4; ++stage) {
    const StepBytes bytes = stage_bytes(model, layout, framework, stage);
    most = std::max(most, bytes.total());
    CHECK(bytes.activations < last);  // 4, 3, 2 and 1 microbatches in flight
    last = bytes.activations;
  }
  CHECK(step_bytes(model, layout, framework).total() == Approx(most));
  CHECK(stage_bytes(model, layout, framework, 0).activations == Approx(4 * last));
  // With fewer microbatches than stages no stage holds more than there are.
  Layout few = layout;
  few.batch = 2 * few.microbatch;
  CHECK(stage_bytes(model, few, framework, 0).activations == Approx(2 * last));
  CHECK(stage_bytes(model, few, framework, 3).activations == Approx(last));
  // A large vocabulary makes the last stage the fullest one.
  model.block.vocabulary = 1 << 20;
  CHECK(step_bytes(model, layout, framework).total() ==
        Approx(stage_bytes(model, layout, framework, 3).total()));
  // One stage holds both tables, or one that is tied.
  layout = layout_of(1, 1, 1);
  const double two = step_bytes(model, layout, framework).weights;
  model.tied = true;
  CHECK(two - step_bytes(model, layout, framework).weights == Approx(2 * 1024.0 * (1 << 20)));
}

TEST_CASE("what a framework keeps beyond the arithmetic") {
  TransformerStack model = small_model();
  model.block.gated = true;
  Layout layout = layout_of(4, 1, 1);
  layout.sequence_parallel = layout.flash_attention = true;
  Framework framework;
  const StepBytes plain = step_bytes(model, layout, framework);
  const double tokens = 2 * 1024;
  framework.keeps_gathered = true;  // two inputs of 16 bits, three quarters more of each
  CHECK(step_bytes(model, layout, framework).activations - plain.activations ==
        Approx(8 * 2 * 2 * 0.75 * tokens * 1024));
  framework = {};
  framework.separate_gate = true;
  CHECK(step_bytes(model, layout, framework).activations - plain.activations ==
        Approx(8 * 2 * tokens * 4096 / 4));
  framework = {};
  framework.unusable_share = 0.1;
  framework.context_bytes = 1e9;
  CHECK(step_bytes(model, layout, framework).total() == Approx(1.1 * plain.total() + 1e9));
  // 16 bits of each token and hidden value for each of 4, 3 and 2 microbatches in flight; the last
  // stage sends nothing.
  framework = {};
  framework.keeps_outputs = true;
  layout = layout_of(1, 4, 1);
  for (const std::uint64_t stage : {0, 1, 2, 3})
    CHECK(stage_bytes(model, layout, framework, stage).activations -
              stage_bytes(model, layout, {}, stage).activations ==
          Approx(stage == 3 ? 0 : 2 * tokens * 1024 * static_cast<double>(4 - stage)));
}
