// Priced blocks against the meta run of the layers that Troupe trains.
#include "kernels/stage.h"
#include "planner/layer_ops.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

struct Compared {
  ModelSpec model;
  LayerProfile layer;
  BlockShape shape;
  BlockCut cut;
};

/// Widths and rows are multiples of the arena's granularity, so that nothing is rounded.
Compared compared(bool llama, std::uint32_t length) {
  Compared out;
  out.model = llama ? tiny_llama(false) : tiny_gpt2(false);
  out.model.width = 128;
  out.model.heads = 4;
  out.model.kv_heads = llama ? 2 : 4;
  out.model.ffn_width = 384;
  out.model.context = length;
  StepShape step = tiny_shape(1, 2, DType::bf16);
  step.sequence_length = length;
  out.layer = profile_model(out.model, step).block;
  out.shape = block_shape(architecture_of(out.model), 0, length);
  out.cut.microbatch = step.microbatch_size;
  out.cut.flash_attention = true;
  out.cut.causal = true;
  return out;
}

}  // namespace

TEST_CASE("priced flops are those of the meta run, up to the diagonal of the mask") {
  const bool llama = GENERATE(false, true);
  const std::uint32_t length = GENERATE(32u, 128u);
  const Compared c = compared(llama, length);
  const BlockOps ops = block_ops(c.shape, c.cut);
  // The kernels compute t (t + 1) / 2 of the t x t scores; the price takes half of them.
  const double diagonal = (length + 1.0) / length;
  CHECK(c.layer.forward.matmul_flops ==
        Approx(total_flops(ops.forward) + diagonal * total_flops(ops.attention_forward))
            .epsilon(1e-14));
  CHECK(c.layer.backward_input.matmul_flops + c.layer.backward_weight.matmul_flops ==
        Approx(total_flops(ops.backward) + diagonal * total_flops(ops.attention_backward))
            .epsilon(1e-14));
}

TEST_CASE("priced bytes are those that the meta run keeps, up to the norms' statistics") {
  const bool llama = GENERATE(false, true);
  const std::uint32_t length = GENERATE(32u, 128u);
  const Compared c = compared(llama, length);
  // Each of two norms keeps 1 / sigma of a row in f32, and its mean where it subtracts one. The
  // meta run counts the block's output where the price counts its input: as many bytes.
  const double statistics = 4.0 * (llama ? 2 : 4) * 2 * length;
  CHECK(static_cast<double>(c.layer.saved_bytes) ==
        kept_bytes(c.shape, c.cut, Recompute::none) + statistics);
}

TEST_CASE("priced parameters are those of the meta run") {
  const bool llama = GENERATE(false, true);
  const Compared c = compared(llama, 32);
  CHECK(static_cast<double>(c.layer.gradient_bytes) == 4 * block_weights(c.shape, 1));
}
