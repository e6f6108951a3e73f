/// The plan: one immutable value that says what runs where, made from (model, cluster, options).
/// plan.json is its text form.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/cluster.h"
#include "planner/cost.h"
#include "planner/expert_part.h"
#include "planner/model.h"
#include "planner/plan_note.h"
#include "planner/schedule.h"
#include "planner/timeline.h"

namespace troupe {

/// Of a step that trains: its losses travel in one message.
inline constexpr std::uint32_t most_microbatches = 4096;

/// How a step is cut.
struct StepShape {
  std::uint32_t microbatch_count = 1;
  std::uint32_t microbatch_size = 1;  ///< sequences per microbatch (the last may hold fewer)
  std::uint32_t sequence_length = 1;
  std::uint32_t batch_size = 1;  ///< sequences per step
  DType compute = DType::f32;
  friend bool operator==(const StepShape&, const StepShape&) = default;
};

struct StagePlan {
  LayerRange layers;
  DeviceId device;
  StageRecompute recompute = {};
  friend bool operator==(const StagePlan&, const StagePlan&) = default;
};

/// Bytes of one device by category, at the peak.
struct MemoryPlan {
  Bytes weights = 0, gradients = 0, optimizer = 0, activations = 0, workspace = 0, transfer = 0;
  Bytes total() const {
    return weights + gradients + optimizer + activations + workspace + transfer;
  }
  friend bool operator==(const MemoryPlan&, const MemoryPlan&) = default;
};

/// What the planner is asked for.
struct PlanOptions {
  StepShape shape;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  std::uint32_t chunks = 1;  ///< virtual stages per device, interleaved only
  /// Pinned: layer ranges per stage, each with its device; empty = automatic.
  std::vector<StagePlan> pinned;
  std::uint32_t transfer_slots = 2;
  /// Of all blocks that are not pinned; pinned stages have their own.
  Recompute recompute = Recompute::none;
  /// Left open: choose_plan (planner/plan_choice.h) puts its choice in place of shape, of schedule
  /// and chunks, or of what blocks compute again. make_plan takes these as they stand.
  bool choose_microbatches = false;
  bool choose_schedule = false;
  bool choose_recompute = false;
  bool open() const { return choose_microbatches || choose_schedule || choose_recompute; }
};

/// The profiles of the model's layers at the step's shape.
struct ModelProfile {
  LayerProfile embedding, block, head;
  /// Of each block, where they differ; `block` is then the last of them. Empty: all are alike.
  std::vector<LayerProfile> blocks = {};
  /// What of its blocks routed experts are; none for a model without.
  std::optional<ExpertPart> experts = {};
  const LayerProfile& of(LayerKind kind) const;
  const LayerProfile& layer(const ModelSpec& model, std::uint32_t layer) const;
};

struct Plan {
  PlanEpoch epoch;
  ModelSpec model;
  StepShape shape;
  ScheduleKind schedule_kind = ScheduleKind::one_f_one_b;
  std::vector<StagePlan> stages;  ///< by StageId, in layer order
  Schedule schedule;
  std::vector<std::uint32_t> in_flight;  ///< by stage
  std::vector<std::uint32_t> deferred;   ///< by stage
  std::vector<MemoryPlan> memory;        ///< by device
  std::vector<DeviceId> unused;          ///< devices that get nothing, with no error
  Seconds predicted_step = 0;
  Timeline timeline;            ///< predicted
  std::vector<PlanNote> notes;  ///< what binds the step, the search, the runner-up
  friend bool operator==(const Plan&, const Plan&) = default;
};

/// The profiles of a model at another step shape: `kernels/` makes them.
using ProfileAt = std::function<ModelProfile(const StepShape&)>;

/// Makes the best plan: contiguous stages over an order of the devices that minimise the predicted
/// step time with every device within its memory. Refuses with does_not_fit, naming the device, the
/// bytes needed, the bytes free and a change that would fit: it was tried. More
/// microbatches are offered only where `profile_at` can say what they take.
Result<Plan> make_plan(const ModelSpec& model,
                       const ClusterSpec& cluster,
                       const ModelProfile& profile,
                       const PlanOptions& options,
                       const ProfileAt& profile_at = {});

/// Peak bytes per device for given stages: the walk along the schedule that make_plan uses.
std::vector<MemoryPlan> memory_of(const std::vector<StagePlan>& stages,
                                  const Schedule& schedule,
                                  const ClusterSpec& cluster,
                                  const ModelSpec& model,
                                  const ModelProfile& profile);

/// plan.json. Device names stand beside their numbers for readers; everything of the plan comes
/// back from `plan_from_json`.
std::string to_json(const Plan& plan, const ClusterSpec& cluster);
/// Strict: unknown or missing keys, wrong types, layers that are not placed once and schedules that
/// do not validate are refused by name. Texts over 256 MiB are refused, and those of format 1,
/// whose notes had no kinds.
Result<Plan> plan_from_json(std::string_view text);

}  // namespace troupe
