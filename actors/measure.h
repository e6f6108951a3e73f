/// How long the layers of a model take on a device of this machine: measured by running them.
#pragma once

#include <map>

#include "devices/device.h"
#include "planner/cost.h"
#include "planner/model.h"
#include "planner/plan.h"

namespace troupe {

/// Each layer kind once, at the run's microbatch shape: the median of a few runs after a warm-up.
/// Opens a device like `spec` without its memory cap for the time of the measurement.
Result<std::map<LayerKind, LayerSeconds>> measure_layers(const DeviceSpec& spec,
                                                         const ModelSpec& model,
                                                         const StepShape& shape);

}  // namespace troupe
