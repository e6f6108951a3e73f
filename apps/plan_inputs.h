/// What a plan of a configuration is made from: for a model that can be trained the layers
/// themselves, run on the meta device, and measured devices; for any other its shape and the rates
/// of the devices.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "actors/launch.h"
#include "apps/run_config.h"

namespace troupe {

class PlanInputs {
 public:
  explicit PlanInputs(const LoadedConfig& config) : config_(config) {}

  /// What to say beside the plan of a model that is not trained yet; empty for all others.
  std::string looked_at() const;
  /// Puts it before the other notes of a plan, where there is one.
  void add_note(std::optional<Plan>& plan) const;
  ModelProfile profile_at(const StepShape& shape) const;
  /// With rates. CPU devices without are measured where the model can be trained, else refused.
  Result<ClusterSpec> cluster() const;
  /// Errors as plan_training. The plan's notes begin with what `looked_at` says.
  Result<PlannedRun> plan() const;

 private:
  bool trained() const { return config_.untrained.empty(); }
  PlanNote note() const { return {NoteKind::looked_at, config_.untrained}; }
  const LoadedConfig& config_;
};

}  // namespace troupe
