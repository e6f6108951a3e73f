/// The terms of one step of an Architecture under a layout: step_seconds adds them up in closed
/// form, layout_step gives them to the actions of a schedule. Internal to the estimates of
/// architectures.
#pragma once

#include <optional>
#include <vector>

#include "planner/architecture_estimate.h"
#include "planner/rank_share.h"

namespace troupe {

/// Of the table and the output layer for one microbatch, forward and backward.
struct EndSeconds {
  Seconds input = 0, output = 0;
  Seconds forward_of_input() const { return input / 2; }
  Seconds forward_of_output() const { return output / 3; }
};
EndSeconds end_seconds(const ArchitectureRun& run,
                       const Layout& layout,
                       const Framework& framework,
                       const TrainingCluster& cluster);

/// By block; the first of the blocks of each kind stands for its kind.
std::vector<BlockSeconds> all_block_seconds(const ArchitectureRun& run,
                                            const Layout& layout,
                                            const Framework& framework,
                                            const TrainingCluster& cluster);

/// Bytes of one microbatch between two stages, of all ranks of a tensor group together.
double boundary_bytes(const ArchitectureRun& run, const Layout& layout);
/// So many bytes from one stage to the next.
Seconds boundary_seconds(double bytes, const Layout& layout, const Interconnect& net);

/// Whether layers are gathered before they compute, and scattered after (planner/sharded_data.h).
bool gathers_layers(const Layout& layout, const Framework& framework);

/// Once a step, of a device that holds `parameters`: gradients reduced beside the last microbatch,
/// parameters gathered beside the first. `microbatch`: what the device computes in one.
Seconds reduction_seconds(const Layout& layout,
                          const Framework& framework,
                          const Interconnect& net,
                          const RankParameters& parameters,
                          const BlockSeconds& microbatch);
Seconds optimizer_seconds(const RankParameters& parameters,
                          const Layout& layout,
                          const Framework& framework,
                          const AcceleratorRates& device);

/// Bytes that a block keeps of one microbatch from forward to backward.
double block_kept_bytes(const ArchitectureRun& run,
                        const Layout& layout,
                        const Framework& framework,
                        std::uint32_t block);

/// What a device holds while a step runs.
struct HeldLayers {
  RankParameters parameters;
  double in_flight = 0;  ///< blocks times microbatches between forward and backward, at most
  /// The same while it computes the loss; nothing where another device does.
  std::optional<double> at_loss;
};
StepBytes held_bytes(const ArchitectureRun& run,
                     const Layout& layout,
                     const Framework& framework,
                     const HeldLayers& held);

}  // namespace troupe
