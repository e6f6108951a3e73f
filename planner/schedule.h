/// A schedule is a value: one ordered list of compute actions per device, and one ordered list of
/// transfers per directed link. The same value is validated, simulated, executed and drawn.
///
/// Text form, one line a lane, e.g. for two stages and two microbatches under 1F1B:
///   d0: F0.0 F0.1 B0.0 B0.1 N0 U0
///   d1: F1.0 B1.0 F1.1 B1.1 N1 U1
///   d0>d1: XF0.0 XF0.1
///   d1>d0: XB1.0 XB1.1
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/ids.h"
#include "planner/result.h"

namespace troupe {

/// What one action does. Compute actions occupy a device, transfers a directed link.
enum class Op : std::uint8_t {
  forward,            ///< F s.m
  backward,           ///< B s.m: input and weight gradients together
  backward_input,     ///< I s.m: the gradient that the stage before waits for
  backward_weight,    ///< W s.m: needs I s.m; nobody waits for it but N
  transfer_forward,   ///< XF s.m: output of F s.m travels to stage s+1
  transfer_backward,  ///< XB s.m: input gradient of B/I s.m travels to stage s-1
  transfer_tied,  ///< XT s: the gradient of a tied table travels to the other stage that uses it
  norm,           ///< N s: sums of squares of the stage's gradients (after XT where tied)
  update,         ///< U s: clip, optimizer step; needs N of every stage
};

/// One entry of a lane. `microbatch` is 0 where the op has none (XT, N, U).
struct Action {
  Op op = Op::forward;
  StageId stage;
  MicrobatchId microbatch;
  friend auto operator<=>(const Action&, const Action&) = default;
};

std::string to_string(const Action& action);  ///< "F2.0", "XB1.3", "N0"
Result<Action> parse_action(std::string_view text);

/// Where stages are and how the step is cut: all that data flow depends on.
struct StageMap {
  std::vector<DeviceId> device_of_stage;  ///< by StageId; interleaved: a device appears often
  std::uint32_t microbatch_count = 1;
  std::uint32_t device_count = 1;    ///< devices of the cluster; some may be unused
  bool tied = false;                 ///< first and last stage share the token table
  std::uint32_t transfer_slots = 2;  ///< receive buffers per edge (credits)
  /// Pipelines that run side by side on the same devices, each with stage_count() / chains of the
  /// stages and microbatch_count microbatches of its own: 2 for bidirectional schedules, whose
  /// microbatch m of the second chain is another one than microbatch m of the first. Only what is
  /// simulated has more than one.
  std::uint32_t chains = 1;
  friend bool operator==(const StageMap&, const StageMap&) = default;
  std::uint32_t stage_count() const { return static_cast<std::uint32_t>(device_of_stage.size()); }
  std::uint32_t chain_length() const { return stage_count() / chains; }
  bool starts_chain(std::uint32_t stage) const { return stage % chain_length() == 0; }
  bool ends_chain(std::uint32_t stage) const { return (stage + 1) % chain_length() == 0; }
};

/// Stage s of devices x loops on device s mod devices.
StageMap looped_stages(std::uint32_t devices, std::uint32_t microbatches, std::uint32_t loops = 1);

enum class ScheduleKind : std::uint8_t { gpipe, one_f_one_b, interleaved, zero_bubble_h1 };
std::string_view to_string(ScheduleKind kind);  ///< "gpipe", "1f1b", "interleaved", "zb-h1"
Result<ScheduleKind> parse_schedule_kind(std::string_view text);

/// A directed link lane.
struct LinkLane {
  DeviceId from, to;
  std::vector<Action> actions;  ///< sent in this order
  friend bool operator==(const LinkLane&, const LinkLane&) = default;
};

/// One step of training.
struct Schedule {
  StageMap stages;
  bool split_backward = false;               ///< I and W instead of B
  std::vector<std::vector<Action>> devices;  ///< by DeviceId: compute actions in order
  std::vector<LinkLane> links;               ///< only pairs that transfer something
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

/// What must finish before `action` may start, beside the actions before it in its own lane.
/// The only place that knows the data flow; simulator and stage actor both use it. Stages before
/// and after one are those of its chain.
///   F s.m   : XF (s-1).m, or F (s-1).m on the same device
///   B/I s.m : F s.m; XB (s+1).m, or B/I (s+1).m on the same device;
///             XB s.(m - slots), or B/I (s-1).(m - slots) on the same device, so that one of the
///             stage's `slots` input-gradient buffers is free
///   W s.m   : I s.m
///   XF s.m  : F s.m; F (s+1).(m - slots), so that a receive buffer is free
///   XB s.m  : B/I s.m; B/I (s-1).(m - slots)
///   XT s    : the last B (or I: table gradients are made in I) of its stage
///   N s     : all B/W of s; where tied and s is the first or last stage: XT of both (N adds the
///             halves in place), or the other's last B/I on the same device
///   U s     : N of all stages
std::vector<Action> prerequisites(const Action& action,
                                  const StageMap& stages,
                                  bool split_backward);

/// Checks a schedule: every action exactly once and on its stage's device; per stage, the F, B, I
/// and W actions each in microbatch order (so that gradients accumulate in index order); no
/// deadlock (names the waiting actions); at most `in_flight_limits[s]` microbatches between F and
/// B/W of a stage where limits are given.
Status validate(const Schedule& schedule, const std::vector<std::uint32_t>& in_flight_limits = {});

/// Largest number of microbatches of a stage that hold activations at once: from the start of F to
/// the end of B (or W). Depends on the order alone.
std::vector<std::uint32_t> in_flight_per_stage(const Schedule& schedule);
/// The same from the start of I to the end of W (0 without split backward): memory for the output
/// gradients that W still needs.
std::vector<std::uint32_t> deferred_per_stage(const Schedule& schedule);

std::string to_text(const Schedule& schedule);
Result<Schedule> parse_schedule(std::string_view text, const StageMap& stages);

}  // namespace troupe
