/// The order of one device's work in one step, without clock, message or memory: which action the
/// device may take next, which tensor its outgoing links may send next, given what has finished.
/// Device actors drive it from messages, tests by hand.
///
/// A device runs what was submitted in order, so an action may be handed to it as soon as all it
/// waits for has finished elsewhere or was handed over before: the device never idles for a message
/// about its own work. N is the exception: it counts when it has really ended, because U waits for
/// what the run makes of it.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/schedule_cursor.h"

namespace troupe {

/// The stage at the receiving end of a transfer; none where these stages have no such transfer.
std::optional<StageId> receiver_of(const Action& transfer, const StageMap& stages);

class DeviceProgram {
 public:
  enum class Kind : std::uint8_t { training, evaluation };
  /// `schedule` must outlive this and stay as it is.
  DeviceProgram(const Schedule& schedule, DeviceId device, Kind kind = Kind::training);

  /// Back to the start of a step.
  void reset();

  /// The action to hand to the device now, marked as handed over; none while `limit` actions are
  /// unfinished or the next one must wait.
  std::optional<Action> take_action();
  /// The transfer to send now and its receiver, marked as sent.
  std::optional<std::pair<Action, DeviceId>> take_transfer();

  /// An action of this device ended.
  void note_own(const Action& action);
  /// A transfer of this device was delivered.
  void note_delivered(const Action& action);
  /// A transfer to this device arrived, or an action of another device ended that a lane here waits
  /// for.
  void note_foreign(const Action& action);

  /// The run has decided what the gradients are scaled by: U may start when all N are done.
  void allow_updates() { updates_allowed_ = true; }

  /// The lane and all outgoing links are done.
  bool done() const;
  std::uint64_t finished() const { return finished_; }  ///< actions and transfers, ever
  /// "d1 waits at B0.0 for XB1.0", or what is running.
  std::string waiting() const;

 private:
  struct Sending {
    DeviceId to;
    ScheduleCursor cursor;
  };
  static constexpr std::size_t limit = 3;  ///< actions in the device's queue
  bool gate_is_open(const Action& action) const;
  const Schedule* schedule_;
  DeviceId device_;
  Kind kind_;
  ScheduleCursor lane_;
  std::vector<Sending> sending_;
  std::vector<Action> handed_over_;
  bool updates_allowed_ = false;
  ActionSet noted_;  ///< of an evaluation: what its gates wait for
  std::uint64_t finished_ = 0;
};

/// Forward alone, for validation: F of each stage and the transfers between them. A program of kind
/// evaluation does not start F s.m before F (s+1).(m - slots) has read the same output buffer.
Schedule evaluation_schedule(const Schedule& training);

}  // namespace troupe
