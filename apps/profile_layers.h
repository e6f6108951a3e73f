/// Whole layers for a machine's profile: models of several widths in both types, and the one that a
/// configuration trains.
#pragma once

#include <string>
#include <vector>

#include "planner/layer_ratios.h"
#include "planner/plan.h"

namespace troupe {

/// A model whose layers are measured, and its step.
struct LayerCase {
  ModelSpec model;
  StepShape shape;
};

/// The cheapest first, so that a short budget has the most of them.
std::vector<LayerCase> reference_layers();

struct MeasuredLayers {
  std::vector<LayerRatio> ratios;
  std::size_t left_out = 0;           ///< cases that the budget had no time for
  std::vector<std::string> unsteady;  ///< what took unlike times
};

/// The layers that a configuration trains; where microbatches are `open` with the smallest that may
/// be chosen and one in between, too.
std::vector<LayerCase> own_layers(const ModelSpec& model, const StepShape& shape, bool open);

/// "gpt2 of width 64 (f32, bf16), llama of width 128 (f32)", as they were measured.
std::string layers_text(const std::vector<LayerRatio>& layers);

/// Layers on the processor with so many threads, as ratios to these rates: those of `own`, whatever
/// they take, then of reference layers while `budget` seconds last.
Result<MeasuredLayers> measure_profile_layers(std::uint32_t threads,
                                              const DeviceRates& rates,
                                              const std::vector<LayerCase>& own,
                                              Seconds budget);

}  // namespace troupe
