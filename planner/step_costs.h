/// Prices the actions of a step: layer profiles x device rates (or measured seconds) and links.
#pragma once

#include <vector>

#include "planner/plan.h"
#include "planner/simulate.h"

namespace troupe {

/// Seconds of one layer of a kind on a device: measured where the device was profiled, else by its
/// rates. What the profile computes again comes on top of what was measured.
LayerSeconds layer_seconds(const DeviceSpec& device, const LayerProfile& profile, DType compute);

/// The cluster for layers of other sizes: what was measured of its devices at `at`, carried over.
ClusterSpec carried_to(ClusterSpec cluster, const ModelProfile& at, const ModelProfile& wanted);
/// The cluster for microbatches of another size, with which layers are as `wanted`: from the sizes
/// that were measured of a device, else carried over from `at`.
ClusterSpec with_microbatches(ClusterSpec cluster,
                              const ModelProfile& at,
                              const ModelProfile& wanted,
                              std::uint32_t microbatch_size);

/// Arithmetic of the actions of a stage with these layers: the sum over the layers.
LayerSeconds stage_seconds(const DeviceSpec& device,
                           const ModelSpec& model,
                           const ModelProfile& profile,
                           LayerRange layers,
                           DType compute,
                           const StageRecompute& recompute = {});

/// Of a stage's actions in a whole step, one after the other, without overhead.
Seconds step_sum(const LayerSeconds& actions, std::uint32_t microbatches);

/// latency + bytes / bandwidth.
Seconds transfer_seconds(const LinkSpec& link, double bytes);
Seconds transfer_seconds(const LinkSpec& link, Bytes bytes);

/// All costs of a step. Transfers between stages of one device cost nothing.
StepCosts step_costs(const std::vector<StagePlan>& stages,
                     const ClusterSpec& cluster,
                     const ModelSpec& model,
                     const ModelProfile& profile,
                     DType compute);

}  // namespace troupe
