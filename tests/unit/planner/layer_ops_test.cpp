// Flops, kept bytes and parameters of priced blocks against published closed forms, and every
// published model's block against its matrices.
#include "planner/layer_ops.h"

#include "planner/device_model.h"
#include "tests/support/catch.h"
#include "tests/support/published_models.h"

using namespace troupe;

namespace {

const std::filesystem::path data_folder = TROUPE_SOURCE_DIR "/tests/data";

/// GPT-3 175B: what Korthikanti et al. and Narayanan et al. state their forms for.
const GptShape gpt{96, 12288, 96, 2048, 51200};

BlockShape block_of(const GptShape& shape) {
  BlockShape out;
  out.hidden = shape.hidden;
  out.heads = out.kv_heads = shape.heads;
  out.ffn = 4 * shape.hidden;
  out.sequence = shape.sequence;
  out.vocabulary = shape.vocabulary;
  return out;
}

double block_flops(const BlockOps& ops) {
  return total_flops(ops.forward) + total_flops(ops.attention_forward) + total_flops(ops.backward) +
         total_flops(ops.attention_backward);
}

double forward_flops(const BlockOps& ops) {
  return total_flops(ops.forward) + total_flops(ops.attention_forward);
}

/// Elements of all matrices that one token multiplies in a block: its parameters without norms,
/// biases and sinks.
double matrices(const Architecture& model, std::uint32_t block) {
  const LayerParameters count = block_parameters(model, block);
  const AttentionShape& a = model.attention;
  const double width = model.width;
  double out = 0;
  if (a.is_latent()) {
    const LatentAttention& l = a.latent;
    const double q_width = double{1} * a.heads * (l.nope_width + l.rope_width);
    out += l.q_rank == 0 ? width * q_width : l.q_rank * (width + q_width);
    out += width * (l.kv_rank + l.rope_width);
    out += double{1} * l.kv_rank * a.heads * (l.nope_width + l.value_width);
    out += width * a.heads * l.value_width;
  } else {
    out += width * a.head_width * (2.0 * a.heads + 2.0 * a.kv_heads);
  }
  const double ffn = model.ffn_matrices * width;
  if (!has_experts(model, block)) return out + ffn * model.ffn_width;
  const ExpertShape& moe = model.moe;
  CHECK(count.router > 0);
  return out + ffn * moe.shared_ffn_width + moe.top_k * ffn * moe.ffn_width + width * moe.experts;
}

}  // namespace

TEST_CASE("flops of a stack are the closed forms: memory_and_flop_formulas-0012, -0013, -0014") {
  const double batch = 3;
  BlockCut cut;
  cut.microbatch = batch;
  const BlockOps ops = block_ops(block_of(gpt), cut);
  const double head = total_flops(output_ops(block_of(gpt), cut));
  const double none = gpt.layers * block_flops(ops) + head;
  CHECK(none == Approx(gpt_step_flops(gpt, batch, Recompute::none)));
  // The published form for selective recomputation adds s / (6 h): all of attention once more,
  // forward and backward. What is computed again is its forward, a third of that.
  const double again = gpt_step_flops(gpt, batch, Recompute::selective) - none;
  CHECK(again == Approx(3 * gpt.layers * total_flops(ops.attention_forward)));
  const double full = none + gpt.layers * forward_flops(ops);
  CHECK(full == Approx(gpt_step_flops(gpt, batch, Recompute::full)));
}

TEST_CASE("kept bytes are table 2: memory_and_flop_formulas-0001 to -0006") {
  for (const double tensor : {1.0, 8.0})
    for (const bool sequence_parallel : {false, true})
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        INFO("tensor " << tensor << ", sequence parallel " << sequence_parallel);
        BlockCut cut;
        cut.microbatch = 2;
        cut.tensor = tensor;
        cut.sequence_parallel = sequence_parallel;
        double published = block_activation_bytes(gpt, 2, {tensor, sequence_parallel, recompute});
        // The table gives full recomputation without sequence parallelism, which cuts the input.
        if (recompute == Recompute::full && sequence_parallel) published /= tensor;
        CHECK(kept_bytes(block_of(gpt), cut, recompute) == Approx(published));
      }
}

TEST_CASE("every published model: a block has its parameters and multiplies its matrices") {
  const published::Table table(data_folder, "models");
  REQUIRE(table.size() == 48);
  for (const published::Row& row : table.rows()) {
    CAPTURE(row.text("model"));
    const Architecture model = published::architecture_from(row);
    BlockCut cut;
    cut.microbatch = 2;
    const double sequence = 512;
    for (const std::uint32_t block : {0u, model.blocks - 1}) {
      const BlockShape shape = block_shape(model, block, sequence);
      CHECK(block_weights(shape, 1) ==
            Approx(static_cast<double>(block_parameters(model, block).total())).epsilon(1e-14));
      const BlockOps ops = block_ops(shape, cut);
      CHECK(total_flops(ops.forward) == Approx(2 * 1024 * matrices(model, block)));
      CHECK(total_flops(ops.backward) == Approx(2 * total_flops(ops.forward)));
      const double pair = shape.query_width() + shape.context_width();
      CHECK(total_flops(ops.attention_forward) == Approx(2 * 1024 * 512 * shape.heads * pair));
    }
  }
}

TEST_CASE("ranks share a block's work: tensor, context, experts") {
  const Architecture model = published::published_model(data_folder, "deepseek-v3");
  const BlockShape shape = block_shape(model, 60, 4096);
  const BlockOps whole = block_ops(shape, {});
  BlockCut cut;
  cut.context = 4;
  CHECK(forward_flops(block_ops(shape, cut)) == Approx(forward_flops(whole) / 4));
  // 64 ranks hold 4 experts each and get as many rows as one rank alone sends: balanced routing.
  BlockCut spread;
  spread.expert = 64;
  CHECK(forward_flops(block_ops(shape, spread)) == Approx(forward_flops(whole)));
  CHECK(block_weights(shape, 1, 64) ==
        Approx(block_weights(shape, 1) - shape.parameters->experts * 63 / 64));
  // Twice the mean on the busiest rank: the routed products and nothing else double.
  BlockCut uneven = spread;
  uneven.expert_load = 2;
  const double routed = 2.0 * 4096 * 8 * 3 * 7168 * 2048;
  CHECK(forward_flops(block_ops(shape, uneven)) == Approx(forward_flops(whole) + routed));
  // A rank of 4 in 16 bits: 1024 tokens of 8 experts and 7168 elements.
  CHECK(dispatched_bytes(shape, cut) == 1024.0 * 8 * 7168 * 2);
}

TEST_CASE("a causal mask halves fused attention; contiguous parts load the last rank most") {
  const Architecture model = published::published_model(data_folder, "llama-3-8b");
  const BlockShape shape = block_shape(model, 0, 8192);
  BlockCut cut;
  cut.flash_attention = true;
  const double whole = total_flops(block_ops(shape, cut).attention_forward);
  cut.causal = true;
  CHECK(total_flops(block_ops(shape, cut).attention_forward) == whole / 2);
  CHECK(total_flops(block_ops(shape, cut).attention_backward) == whole / 2 * 2.5);
  cut.context = 4;
  CHECK(total_flops(block_ops(shape, cut).attention_forward) == whole / 8);
  // Of 4 x 4 squares the last rank has 3 whole ones and half of one; the mean is 2.
  cut.context_balanced = false;
  CHECK(total_flops(block_ops(shape, cut).attention_forward) == Approx(whole / 16 * 3.5));
  // 2048 tokens of 8 heads of keys and as many of values, 128 wide, in 16 bits.
  CHECK(ring_bytes(shape, cut) == 2048.0 * 2 * 8 * 128 * 2);
}

TEST_CASE("an op in 16 bits keeps its own rate where the run is narrower") {
  AcceleratorRates rates = h100_rates();
  rates.launch = 0;
  LayerOp op{4096, 4096, 4096, 1, 0};
  const Seconds wide = op_seconds(op, rates);
  rates.wide_peak = rates.peak;
  rates.wide_achievable = rates.achievable;
  rates.peak *= 2;
  CHECK(op_seconds(op, rates) == Approx(wide / 2));
  op.kind = OpKind::wide_product;
  CHECK(op_seconds(op, rates) == Approx(wide));
  op.kind = OpKind::attention_forward;
  CHECK(op_seconds(op, rates) == Approx(op.flops() / (989e12 * rates.attention_forward)));
}

TEST_CASE("experts take any number of rows, other batches of products do not") {
  AcceleratorRates rates = h100_rates();
  rates.launch = 0;
  LayerOp op{1001, 4096, 4096, 6, 0};
  const Seconds odd = op_seconds(op, rates);
  op.grouped = true;
  const Seconds grouped = op_seconds(op, rates);
  CHECK(odd > 10 * grouped);
  op.m = 1008;  // the same tiles
  CHECK(op_seconds(op, rates) == grouped);
}
