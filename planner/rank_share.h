/// What one rank of a layout holds and computes of an Architecture: its parameters, its cut of a
/// block. Internal to the estimates of architectures.
#pragma once

#include <cstdint>

#include "planner/architecture_estimate.h"

namespace troupe {

BlockCut cut_of(const Layout& layout, const Framework& framework);

/// Ranks that share out the states of what every rank holds, and of what only some hold (experts).
struct Shards {
  double dense = 1, experts = 1;
};
Shards shards_of(const Layout& layout);

/// Parameters of one rank.
struct RankParameters {
  double dense = 0, experts = 0;
  double total() const { return dense + experts; }
  double sharded(bool shared_out, const Shards& shards) const {
    return shared_out ? dense / shards.dense + experts / shards.experts : total();
  }
};
RankParameters rank_block(const ArchitectureRun& run, std::uint32_t block, const Layout& layout);
double rank_table(const ArchitectureRun& run, const Layout& layout);  ///< of the embedding
double rank_head(const ArchitectureRun& run, const Layout& layout);
/// Of a device with these layers: 0 is the embedding, then the blocks, then the head. Where it has
/// the head of a tied table but not the embedding, it has the table once more.
RankParameters rank_layers(const ArchitectureRun& run, const Layout& layout, LayerRange layers);
/// Of the stage with the most blocks, taken from the end, where the blocks with experts are.
RankParameters rank_stage(const ArchitectureRun& run, const Layout& layout);
/// Blocks of the stage that holds the most.
std::uint32_t stage_blocks(const ArchitectureRun& run, const Layout& layout);

}  // namespace troupe
