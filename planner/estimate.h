/// Step time and peak memory of a layout, by term. A pure function of shapes, rates and layout.
#pragma once

#include "planner/collectives.h"
#include "planner/device_model.h"
#include "planner/layout.h"

namespace troupe {

struct TrainingCluster {
  AcceleratorRates device;
  Interconnect net;
};

/// Seconds of one block for one microbatch on one device, tensor-parallel traffic included.
struct BlockSeconds {
  Seconds forward = 0, backward = 0;  ///< backward with what it recomputes
  Seconds attention = 0;              ///< forward of the core of attention, a part of `forward`
  Seconds tensor = 0;                 ///< tensor-parallel traffic, a part of both
};
BlockSeconds block_seconds(const BlockShape& shape,
                           const Layout& layout,
                           const Framework& framework,
                           const TrainingCluster& cluster);

/// Of the optimizer's step over the parameters that one rank updates.
Seconds update_seconds(double parameters,
                       const Framework& framework,
                       const AcceleratorRates& device);

/// Terms of one step on the slowest device; they add up.
struct StepSeconds {
  Seconds compute = 0;    ///< microbatches on the slowest stage, without traffic
  Seconds tensor = 0;     ///< tensor-parallel traffic of the same
  Seconds bubble = 0;     ///< filling and draining the pipeline
  Seconds transfer = 0;   ///< between stages
  Seconds reduction = 0;  ///< of gradients and gathering of parameters, as far as exposed
  Seconds optimizer = 0;
  Seconds total() const { return compute + tensor + bubble + transfer + reduction + optimizer; }
};
/// 1F1B (interleaved with chunks > 1): microbatches on the slowest stage, plus one microbatch on
/// every other stage, over the chunks. Promise: no layout_faults.
StepSeconds step_seconds(const TransformerStack& model,
                         const Layout& layout,
                         const Framework& framework,
                         const TrainingCluster& cluster);

/// Bytes on one device of a stage.
struct StepBytes {
  double weights = 0, gradients = 0, optimizer = 0;
  double activations = 0;  ///< of blocks, for the microbatches in flight
  double working = 0;      ///< what recomputation unfolds: one block, without its kept input
  double ends = 0;         ///< embedding's mask on the first stage; logits and input of the last
  double context = 0;      ///< of device and libraries, and what the allocator cannot use
  double total() const {
    return weights + gradients + optimizer + activations + working + ends + context;
  }
};
StepBytes stage_bytes(const TransformerStack& model,
                      const Layout& layout,
                      const Framework& framework,
                      std::uint64_t stage);
/// Of the stage that needs most.
StepBytes step_bytes(const TransformerStack& model,
                     const Layout& layout,
                     const Framework& framework);

}  // namespace troupe
