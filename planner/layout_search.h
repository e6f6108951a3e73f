/// The best ways to cut a model over many accelerators: every legal layout is priced
/// (planner/architecture_estimate.h), what does not fit is set aside, the fastest come first.
/// Groups of unlike devices train as replicas that get unequal shares of the batch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/architecture_estimate.h"

namespace troupe {

/// Equal devices with equal links, and what they may hold.
struct DeviceGroup {
  std::string name;
  std::uint64_t devices = 1;
  double memory = 0;  ///< bytes of one device that training may fill
  TrainingCluster cluster;
};

/// What the search may choose from. An empty list: every legal value.
struct LayoutChoices {
  std::vector<std::uint64_t> tensor, pipeline, context, expert, microbatch, chunks;
  std::vector<ZeroStage> zero;
  std::vector<Recompute> recompute;
  bool flash_attention = true;
};

struct PricedLayout {
  Layout layout;
  StepSeconds seconds;
  StepBytes bytes;
};

struct LayoutSearch {
  std::uint64_t considered = 0;          ///< legal layouts
  std::uint64_t fitting = 0;             ///< of them those that fit
  std::vector<PricedLayout> best;        ///< fitting ones, fastest first, at most `keep`
  std::optional<PricedLayout> smallest;  ///< of all: it needs the least memory
};

/// Flops of one step, of the model alone.
double model_flops(const ArchitectureRun& run, std::uint64_t batch);

/// Tensor groups stay within a node and divide heads, stages divide the rest, replicas are what is
/// left; experts are divided over ranks of one stage where the model has some; a sequence is
/// divided (context) only where that is asked for; tensor groups above one are sequence-parallel.
/// Chunks above one need as many microbatches as a multiple of the stages (Narayanan et al. 2021,
/// section 2.2.2). ZeRO's stages 2 and 3 go with one pipeline stage only. Equal times: the layout
/// that needs less memory. Promise: devices, batch > 0.
LayoutSearch search_layouts(const ArchitectureRun& run,
                            const DeviceGroup& group,
                            std::uint64_t batch,
                            const Framework& framework,
                            const LayoutChoices& choices = {},
                            std::size_t keep = 5);

/// The best layouts of a group that may leave devices idle.
struct UsedDevices {
  std::uint64_t devices = 0;  ///< that the layouts of `search` are for; the others stay idle
  LayoutSearch search;
  /// Where some stay idle: the quickest layout of all devices; none where none fits.
  std::optional<PricedLayout> of_all;
};
/// Searches the whole group and parts of it, and keeps the part that ends the step soonest; of
/// equally quick ones the smallest. Parts are whole nodes, or devices where there is one node: all
/// counts up to 32, of more the largest powers of two, multiples of these and divisors of the
/// batch. Nothing fits: the search of the whole group.
UsedDevices search_used(const ArchitectureRun& run,
                        const DeviceGroup& group,
                        std::uint64_t batch,
                        const Framework& framework,
                        const LayoutChoices& choices = {},
                        std::size_t keep = 5);

/// Of one group in a step that several share.
struct GroupShare {
  std::uint64_t batch = 0;             ///< sequences; 0: the group gets nothing
  std::optional<PricedLayout> layout;  ///< of `batch` sequences
};
struct SharedStep {
  std::vector<GroupShare> shares;  ///< by group
  Seconds reduction = 0;           ///< of gradients between the groups
  Seconds seconds = 0;             ///< slowest group and reduction
};
/// The shares of the batch that end the step soonest, every group with its best layout for its
/// share, by dynamic programming over groups. Exact up to 128 sequences. Of more, a group's layouts
/// are the `keep` best ones at the batch, its halves and multiples of its replicas, of the group
/// and of parts of it as in `search_used` (all counts up to 8); of more than 2048, shares are
/// multiples of a divisor. `between` is the bandwidth of one node's network between groups; the
/// gradients of the whole model pass over it once each way. Nothing where no group holds the model.
std::optional<SharedStep> share_batch(const ArchitectureRun& run,
                                      const std::vector<DeviceGroup>& groups,
                                      std::uint64_t batch,
                                      BytesPerSecond between,
                                      const Framework& framework,
                                      const LayoutChoices& choices = {},
                                      std::size_t keep = 24);

}  // namespace troupe
