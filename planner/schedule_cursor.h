/// Walks one lane of a schedule: says which action may start next, given what has finished. It has
/// no clock, sends nothing and owns no memory of tensors; the simulator feeds it from a queue of
/// end times, a device actor from messages. `ScheduleRun` is one cursor per lane with the routing.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "planner/prerequisites.h"
#include "planner/schedule.h"

namespace troupe {

/// The schedule must outlive the cursor and stay as it is.
class ScheduleCursor {
 public:
  /// What is known to have finished. Cursors that are told the same may share one set: a set per
  /// lane would make the memory of a step grow with lanes x actions.
  using Finished = std::shared_ptr<ActionSet>;
  /// The compute lane of a device.
  ScheduleCursor(const Schedule& schedule, DeviceId device, Finished finished = nullptr);
  /// The lane of a directed link, one of `schedule.links`.
  ScheduleCursor(const Schedule& schedule, const LinkLane& link, Finished finished = nullptr);
  /// A copy would write into the set of the original.
  ScheduleCursor(const ScheduleCursor&) = delete;
  ScheduleCursor& operator=(const ScheduleCursor&) = delete;
  ScheduleCursor(ScheduleCursor&&) = default;
  ScheduleCursor& operator=(ScheduleCursor&&) = default;
  ~ScheduleCursor() = default;

  /// The action that may start now: the next of the lane, if nothing of the lane is running and
  /// all its prerequisites were noted as finished.
  std::optional<Action> next_ready() const;
  /// Starts what next_ready() returned. Promise: it returned something.
  void start_next();
  /// Takes note that an action finished: the lane's own running one, or one of another lane.
  /// Foreign actions may be noted more than once and in any order; actions that this lane does not
  /// wait for may be left out or noted, it makes no difference.
  void note_finished(const Action& action);

  /// The action that is running.
  std::optional<Action> running() const;
  /// The next action, ready or not, and the prerequisites that it still waits for.
  std::optional<Action> head() const;
  std::vector<Action> missing() const;
  /// Every action of the lane has finished.
  bool done() const { return next_ == lane_->size() && !running_; }
  /// Back to the start of the step; forgets what finished.
  void reset();
  /// The same but for what finished: for all but one of those that share a set.
  void rewind();

 private:
  ScheduleCursor(const Schedule& schedule, const std::vector<Action>& lane, Finished finished);
  void look() const;

  const StageMap* stages_;
  const std::vector<Action>* lane_;
  bool split_backward_;
  Finished finished_;
  std::size_t next_ = 0;
  bool running_ = false;
  /// A prerequisite of the head that is known to be missing: nothing is ready until it comes.
  mutable std::optional<Action> blocker_;
  mutable bool looked_ = false;
};

/// All lanes of a schedule with their cursors: devices first (by DeviceId), then links. Tells each
/// finished action to the lanes that may wait for it.
class ScheduleRun {
 public:
  explicit ScheduleRun(const Schedule& schedule);
  std::size_t lane_count() const { return cursors_.size(); }
  const std::string& lane_name(std::size_t lane) const { return names_[lane]; }  ///< "d0", "d0>d1"
  ScheduleCursor& cursor(std::size_t lane) { return cursors_[lane]; }
  const ScheduleCursor& cursor(std::size_t lane) const { return cursors_[lane]; }
  /// Ends the running action of `lane`; returns the lanes that were told (the lane itself too).
  const std::vector<std::size_t>& finish(std::size_t lane);
  bool done() const;
  /// "d0 waits at B0.0 for XB1.0; ..." for all lanes that are not done.
  std::string waiting() const;
  void reset();

 private:
  std::vector<ScheduleCursor> cursors_;
  std::vector<std::string> names_;
  std::vector<std::vector<std::size_t>> told_by_;  ///< by lane
  std::vector<std::size_t> devices_;               ///< all of them: U waits for N of every stage
};

}  // namespace troupe
