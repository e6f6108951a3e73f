/// How long the layers of a model take on a device of this machine: measured by running them.
#pragma once

#include <functional>
#include <map>

#include "actors/run_spec.h"
#include "actors/run_spec_json.h"
#include "devices/device.h"
#include "planner/cost.h"
#include "planner/layer_ratios.h"
#include "planner/model.h"
#include "planner/plan.h"

namespace troupe {

/// A size at which a layer kind runs at the speed of the whole, and soon.
struct MeasuringSize {
  ModelSpec model;
  StepShape shape;
};
/// At most so many rows and words as products need to run at their full rate; whole sequences for
/// blocks, as attention depends on their length.
MeasuringSize measuring_size(const ModelSpec& model, const StepShape& shape, LayerKind kind);

/// Each layer kind at its measuring size, carried over to the run's microbatch shape: the median of
/// a few runs after a warm-up, in about a second. Where microbatches are `open`, also with the
/// smallest that may be chosen and one in between, in another second. Opens a device like `spec`
/// without its memory cap for the time of the measurement.
Result<std::map<LayerKind, SecondsBySize>> measure_layers(const DeviceSpec& spec,
                                                          const ModelSpec& model,
                                                          const StepShape& shape,
                                                          bool open);

/// The same as ratios to the rates of `spec`, at the sizes that stand for the run's, in about
/// `budget` seconds: at least three runs each. Kinds with unsteady times (is_unsteady) go to
/// `unsteady` by name.
Result<std::vector<LayerRatio>> measure_layer_ratios(const DeviceSpec& spec,
                                                     const ModelSpec& model,
                                                     const StepShape& shape,
                                                     Seconds budget,
                                                     std::vector<std::string>& unsteady);

/// Those CPU devices of the run that are `wanted` and have no times yet. Devices with the same
/// number of threads are alike.
Result<MeasuredDevices> measure_devices(const RunSpec& spec,
                                        const std::function<bool(DeviceId)>& wanted);

}  // namespace troupe
