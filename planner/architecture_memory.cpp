#include <algorithm>
#include <vector>

#include "planner/architecture_terms.h"
#include "planner/result.h"
#include "planner/sharded_data.h"

namespace troupe {
namespace {

/// Bytes that a block keeps under the layout's recomputation.
double kept_of(const BlockShape& shape, const BlockCut& cut, const Layout& layout) {
  const double whole = kept_bytes(shape, cut, Recompute::none);
  if (layout.alternate_products) {
    // Of seven products the outputs of the first, third, fifth and last: queries, values, gate and
    // the way down; the attention's output and the block's input.
    const double tokens = shape.sequence * cut.microbatch / cut.context;
    const double widths = 2 * shape.heads * shape.context_width() +
                          shape.kv_heads * shape.context_width() + shape.ffn;
    const double shared = cut.sequence_parallel ? cut.tensor : 1;
    return 2 * tokens * (widths / cut.tensor + 2 * shape.hidden / shared);
  }
  const double again = layout.recomputed_blocks;
  return again * kept_bytes(shape, cut, layout.recompute) + (1 - again) * whole;
}

/// Blocks times microbatches whose activations the first stage keeps at its peak, and the last one
/// when it has computed the first loss. A stage has as many blocks as the fullest one.
struct BlocksInFlight {
  double first = 0, last = 0;
};

BlocksInFlight blocks_in_flight(const ArchitectureRun& run,
                                const Layout& layout,
                                const Framework& framework) {
  const double stages = real(layout.pipeline), chunks = real(layout.chunks);
  const double blocks = run.model.blocks;
  const double held = framework.balanced_stages || layout.pipeline == 1
                          ? blocks / stages
                          : std::min<double>(stage_blocks(run, layout), blocks);
  const double all = held * real(layout.microbatches());
  // Interleaved: (chunks - 1) x stages microbatches have passed through the last stage's earlier
  // chunks before the first one comes to its last chunk.
  const double last = held / chunks * ((chunks - 1) * stages + 1);
  return {std::min(first_stage_blocks(held * stages, stages, chunks), all), std::min(last, all)};
}

/// Bytes of what differs between moments, on one stage.
struct Moment {
  double activations = 0, working = 0, ends = 0, gathered = 0;
  double total() const { return activations + working + ends + gathered; }
};

Moment loss_moment(const ArchitectureRun& run,
                   const Layout& layout,
                   const Framework& framework,
                   double kept) {
  const double tokens = run.sequence * real(layout.microbatch) / real(layout.context);
  Moment out;
  out.activations = kept;
  out.ends = framework.logit_bytes * tokens * run.model.vocabulary / real(layout.tensor);
  out.ends += 4 * tokens * run.model.width / (layout.sequence_parallel ? real(layout.tensor) : 1);
  if (layout.zero == ZeroStage::parameters && layout.pipeline == 1)
    out.gathered = framework.gathered_bytes * rank_table(run, layout);
  return out;
}

Moment backward_moment(const ArchitectureRun& run,
                       const Layout& layout,
                       const Framework& framework,
                       double kept) {
  const std::uint32_t last = run.model.blocks - 1;
  const BlockShape shape = block_shape(run.model, last, run.sequence);
  const BlockCut cut = cut_of(layout, framework);
  Moment out;
  out.activations = kept;
  const bool again = layout.recompute == Recompute::full || layout.alternate_products;
  if (again) out.working = kept_bytes(shape, cut, Recompute::none) - kept_of(shape, cut, layout);
  if (layout.zero != ZeroStage::parameters || layout.pipeline > 1) return out;
  std::vector<double> units;
  for (std::uint32_t i = 0; i < run.model.blocks; ++i) {
    const RankParameters block = rank_block(run, i, layout);
    units.push_back(block.dense + block.experts);
  }
  // The gradient of a block, whole and as it is reduced, until it is scattered.
  out.gathered = framework.gathered_bytes * gathered_parameters(units, 1) +
                 framework.reduced_bytes * gathered_parameters(units, 0);
  return out;
}

}  // namespace

double block_kept_bytes(const ArchitectureRun& run,
                        const Layout& layout,
                        const Framework& framework,
                        std::uint32_t block) {
  return kept_of(block_shape(run.model, block, run.sequence), cut_of(layout, framework), layout);
}

StepBytes held_bytes(const ArchitectureRun& run,
                     const Layout& layout,
                     const Framework& framework,
                     const HeldLayers& held) {
  const RankParameters& parameters = held.parameters;
  const Shards shards = shards_of(layout);
  const auto from = [&](ZeroStage zero) { return parameters.sharded(layout.zero >= zero, shards); };
  const double whole = parameters.total();
  StepBytes out;
  out.weights = from(ZeroStage::parameters) * framework.weight_bytes;
  out.gradients = from(ZeroStage::gradients) * framework.gradient_bytes;
  out.optimizer = from(ZeroStage::optimizer) * framework.optimizer_bytes;
  out.context = framework.context_bytes;
  // With a pipeline, weights stay gathered and gradients whole until the last microbatch is back.
  if (layout.zero == ZeroStage::parameters && layout.pipeline > 1) {
    out.weights += whole * framework.gathered_bytes;
    out.gradients = whole * framework.reduced_bytes;
  }
  const double kept = block_kept_bytes(run, layout, framework, run.model.blocks - 1);
  Moment worst;
  worst.working = from(ZeroStage::optimizer) * framework.step_bytes;
  std::vector<Moment> moments{backward_moment(run, layout, framework, kept * held.in_flight)};
  if (held.at_loss)
    moments.insert(moments.begin(), loss_moment(run, layout, framework, kept * *held.at_loss));
  for (const Moment& moment : moments)
    if (moment.total() > worst.total()) worst = moment;
  out.activations = worst.activations;
  out.working = worst.working + worst.gathered;
  out.ends = worst.ends;
  return out;
}

StepBytes step_bytes(const ArchitectureRun& run, const Layout& layout, const Framework& framework) {
  EXPECTS(layout_faults(run, layout).empty());
  const BlocksInFlight blocks = blocks_in_flight(run, layout, framework);
  HeldLayers held;
  held.parameters = rank_stage(run, layout);
  held.in_flight = blocks.first;
  held.at_loss = blocks.last;
  return held_bytes(run, layout, framework, held);
}

}  // namespace troupe
