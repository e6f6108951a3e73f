/// A RunSpec as text and back, so that node processes are told exactly what the run was told.
#pragma once

#include <string>
#include <string_view>

#include "actors/run_spec.h"
#include "planner/result.h"

namespace troupe {

/// Numbers come back with the same bits.
std::string to_json(const RunSpec& spec);
/// Error protocol: no JSON, a member missing or of another kind.
Result<RunSpec> run_spec_from_json(std::string_view text);

/// Measured seconds of layer kinds by device index and microbatch size.
using MeasuredDevices = std::map<std::uint32_t, std::map<LayerKind, SecondsBySize>>;
std::string to_json(const MeasuredDevices& measured);
Result<MeasuredDevices> measured_from_json(std::string_view text);

}  // namespace troupe
