/// How a model is cut over equal devices, and what a framework adds to it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/closed_forms.h"
#include "planner/layer_ops.h"
#include "planner/units.h"
#include "planner/zero_memory.h"

namespace troupe {

/// Counts in formulas.
constexpr double real(std::uint64_t count) {
  return static_cast<double>(count);
}

/// Ranks of one stage's tensor group are neighbours, then data replicas, then pipeline stages.
struct Layout {
  std::uint64_t tensor = 1, pipeline = 1, data = 1;
  bool sequence_parallel = false;
  std::uint64_t chunks = 1;  ///< model chunks a device holds: above 1 interleaved 1F1B
  ZeroStage zero = ZeroStage::none;
  std::uint64_t microbatch = 1, batch = 1;  ///< sequences: of a microbatch, of a step in all
  Recompute recompute = Recompute::none;
  bool flash_attention = false;
  /// Blocks of each stage in order, 0 where a stage has only an end; empty: as many on each.
  std::vector<std::uint64_t> stage_blocks = {};
  /// Ranks that each hold a part of every sequence; ranks that divide the routed experts among
  /// them, out of those of a stage.
  std::uint64_t context = 1, expert = 1;
  bool causal = false;           ///< fused attention leaves out the masked half
  bool context_balanced = true;  ///< parts of a sequence have equal work under the mask
  double expert_load = 1;        ///< tokens of the busiest rank over the mean
  /// Ranks of a data (and context) group that share states out between them, where these are fewer
  /// than all: ZeRO in groups, HSDP. 0: all.
  std::uint64_t shard_group = 0;
  double recomputed_blocks = 1;  ///< share of the blocks that `recompute` applies to
  /// Instead of `recompute`: the outputs of every second product and of attention are kept, the
  /// rest is computed again.
  bool alternate_products = false;
  std::uint64_t devices() const { return tensor * pipeline * data * context; }
  /// Of one replica in one step. Promise: batch is a multiple of data * microbatch.
  std::uint64_t microbatches() const { return batch / (data * microbatch); }
};

/// What a training framework does beyond the arithmetic.
struct Framework {
  /// Host time of one eager op. A device waits where the host issues more slowly than it computes.
  Seconds host_per_op = 0;
  bool waits_for_ops = false;  ///< the host issues an op when the last one has ended
  double forward_ops = 24, backward_ops = 44;  ///< eager ops of one block
  /// Bytes a parameter: weights, gradients as kept, gradients as reduced, optimizer.
  double weight_bytes = 2, gradient_bytes = 2, reduced_bytes = 2, optimizer_bytes = 12;
  /// Bytes moved a parameter by unscaling, norm, clipping, Adam and the copy to 16 bits.
  double update_bytes = 60;
  Seconds update_start = 4e-3;  ///< of the optimizer step: its host loops over tensors
  double context_bytes = 0;     ///< of device context and libraries, where memory is compared
  double unusable_share = 0;    ///< of what is held: what the allocator takes and cannot use
  double efficiency = 1;        ///< fitted: divides the time of blocks and ends
  /// Tensors of one block that ZeRO-3 gathers one by one, and whether it does so beside arithmetic.
  double tensors_per_block = 12;
  bool overlaps_gathers = true;
  /// Host time of a block for each rank of its tensor group, where the run spans nodes.
  Seconds host_per_rank = 0;
  /// Bytes moved a parameter to add the gradient of each microbatch to one kept apart.
  double accumulate_bytes = 0;
  bool reduction_hidden = false;    ///< beside the backward of the last microbatch
  double reductions_per_block = 0;  ///< rings of reductions that start anew
  /// With sequence parallelism the gathered inputs of both column-parallel products are kept,
  /// instead of gathered again for backward.
  bool keeps_gathered = false;
  /// A stage keeps what it sent of each microbatch in flight until the gradient comes back.
  bool keeps_outputs = false;
  /// The gate of a gated feed-forward part is applied by ops of its own: one more inner tensor is
  /// kept, and moved.
  bool separate_gate = false;
  double logit_bytes = 14;    ///< at the loss, per logit: 16 bits, f32, its softmax and gradients
  bool fused = false;         ///< pointwise ops are compiled into fewer kernels
  double gathered_bytes = 2;  ///< of a parameter as it is gathered for arithmetic
  double step_bytes = 0;      ///< temporaries of the optimizer step, per parameter it updates
  double dispatch_bytes = 2;  ///< of an element of a token on its way to the experts
  double tensor_exposed = 1, expert_exposed = 1;  ///< share of that traffic that nothing hides
  bool gathers_layers = false;    ///< ZeRO-2 as FSDP's SHARD_GRAD_OP: weights kept for backward
  bool gather_hidden = false;     ///< of updated parameters, beside the next forward
  bool reduced_whole = false;     ///< sharded or not, gradients are all-reduced
  bool owners_broadcast = false;  ///< each rank in turn sends the others what it has updated
  bool transfers_hidden = false;  ///< between stages, but for filling and draining
  bool balanced_stages = false;   ///< layers of a model are divided evenly, its ends counted in
};

/// A stack of equal blocks between a table of words and the output layer.
struct TransformerStack {
  BlockShape block;
  std::uint64_t layers = 1;
  bool tied = true;  ///< the output layer shares the table of the input
};

/// Blocks of stage `stage`: those of the layout, or an even share, rounded up.
std::uint64_t blocks_of_stage(const TransformerStack& model,
                              const Layout& layout,
                              std::uint64_t stage);
/// Blocks of each stage where the output layer counts as the blocks that it costs as much as: a
/// stage is full when it reaches its share of the products (nanotron's rule).
std::vector<std::uint64_t> stages_with_output(const TransformerStack& model,
                                              std::uint64_t pipeline);

/// Every reason why the layout cannot run, in words; empty: none.
std::vector<std::string> layout_faults(const TransformerStack& model, const Layout& layout);

}  // namespace troupe
