#include "planner/rank_share.h"

#include <algorithm>

namespace troupe {
BlockCut cut_of(const Layout& layout, const Framework& framework) {
  BlockCut out;
  out.microbatch = real(layout.microbatch);
  out.tensor = real(layout.tensor);
  out.sequence_parallel = layout.sequence_parallel;
  out.flash_attention = layout.flash_attention;
  out.context = real(layout.context);
  out.causal = layout.causal;
  out.context_balanced = layout.context_balanced;
  out.expert = real(layout.expert);
  out.expert_load = layout.expert_load;
  out.fused = framework.fused;
  return out;
}

Shards shards_of(const Layout& layout) {
  const double replicas = real(layout.data * layout.context);
  Shards out;
  out.dense = layout.shard_group > 0 ? std::min(real(layout.shard_group), replicas) : replicas;
  out.experts = std::max(1.0, out.dense * real(layout.tensor) / real(layout.expert));
  return out;
}

RankParameters rank_block(const ArchitectureRun& run, std::uint32_t block, const Layout& layout) {
  const BlockShape shape = block_shape(run.model, block, run.sequence);
  const double all = block_weights(shape, real(layout.tensor), real(layout.expert));
  const double experts = shape.parameters->experts / real(layout.expert);
  return {all - experts, experts};
}

double rank_table(const ArchitectureRun& run, const Layout& layout) {
  return real(embedding_parameters(run.model).total()) / real(layout.tensor);
}

double rank_head(const ArchitectureRun& run, const Layout& layout) {
  return real(head_parameters(run.model).total()) / real(layout.tensor);
}

std::uint32_t stage_blocks(const ArchitectureRun& run, const Layout& layout) {
  const std::uint64_t pieces = layout.pipeline * layout.chunks;
  return static_cast<std::uint32_t>((run.model.blocks + pieces - 1) / pieces * layout.chunks);
}

RankParameters rank_layers(const ArchitectureRun& run, const Layout& layout, LayerRange layers) {
  RankParameters out;
  const std::uint32_t head = run.model.blocks + 1;
  for (std::uint32_t layer = layers.first; layer < layers.last; ++layer) {
    if (layer == 0 || layer == head) continue;
    const RankParameters block = rank_block(run, layer - 1, layout);
    out.dense += block.dense;
    out.experts += block.experts;
  }
  if (layers.holds(0)) out.dense += rank_table(run, layout);
  if (!layers.holds(head)) return out;
  out.dense += rank_head(run, layout);
  if (run.model.tied && !layers.holds(0)) out.dense += rank_table(run, layout);
  return out;
}

RankParameters rank_stage(const ArchitectureRun& run, const Layout& layout) {
  RankParameters out;
  const std::uint32_t held = std::min(stage_blocks(run, layout), run.model.blocks);
  for (std::uint32_t i = run.model.blocks - held; i < run.model.blocks; ++i) {
    const RankParameters block = rank_block(run, i, layout);
    out.dense += block.dense;
    out.experts += block.experts;
  }
  const double table = rank_table(run, layout), head = rank_head(run, layout);
  out.dense += layout.pipeline == 1 ? table + head : std::max(table, head);
  return out;
}

}  // namespace troupe
