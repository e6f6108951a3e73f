/// Where a run parts from its plan: which work of which device or link makes steps longer (or
/// shorter) than predicted. Pure functions over timelines, and the watch that decides when to look
/// and what is news.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "planner/schedule.h"
#include "planner/timeline.h"

namespace troupe {

/// A term of the step time.
enum class DriftTerm : std::uint8_t {
  arithmetic,  ///< F, B, I and W of one stage
  optimizer,   ///< N and U of one stage
  link,        ///< transfers of one directed link
  overhead     ///< time between actions: messages, waiting for tokens, orders of the run
};

/// Names a term: of `stage` on `device` (arithmetic, optimizer), of the link `device` > `to`, or
/// overhead, most of it before actions of `device`.
struct DriftCause {
  DriftTerm term = DriftTerm::overhead;
  DeviceId device, to;
  StageId stage;
  friend bool operator==(const DriftCause&, const DriftCause&) = default;
};

/// A step beside its plan, and the term that explains most of the difference.
struct Drift {
  DriftCause cause;
  Seconds predicted_step = 0, measured_step = 0;
  Seconds predicted_term = 0, measured_term = 0;  ///< of a step; of overhead 0 was planned
  /// By so much the step would be shorter had this term alone gone as planned (negative: longer).
  Seconds explained = 0;
  double ratio() const { return measured_step / predicted_step; }
};

/// Attributes the difference between the planned and a played step. Each term's part is what the
/// schedule, played again with the measured lengths of all actions, loses when that term has its
/// planned lengths; the overhead's part is what the step took beyond that play. Of the terms, those
/// 16 whose own seconds differ most are tried.
/// Promise: both timelines hold every action of the schedule once; the planned one is not empty.
/// `measured_step`: from the order to begin until the last device was done.
Drift explain_drift(const Schedule& schedule,
                    const Timeline& planned,
                    const Timeline& played,
                    Seconds measured_step);

/// "steps take 412 ms, 1.31 x the plan's 314 ms: arithmetic of stage 2 on t4 (d2) of node turing
/// takes 120 ms a step, 1.60 x the plan's". `device_names`, `node_names`: by DeviceId, may be
/// empty.
std::string to_text(const Drift& drift,
                    const std::vector<std::string>& device_names,
                    const std::vector<std::string>& node_names = {});

/// Decides from step times when a step's spans are worth having, and when a drift is news. A drift
/// is in force when the median of the last 5 steps is more than 10 % off the prediction and two
/// traced steps in a row are so for the same cause; it has ended when the median is within 7.5 %.
class DriftWatch {
 public:
  static constexpr double share = 0.1;
  static constexpr double end_share = 0.075;
  static constexpr std::size_t window = 5;

  explicit DriftWatch(Seconds predicted_step) : predicted_(predicted_step) {}

  /// A step as it went; not the first of a run, which touches its memory for the first time.
  /// True: the drift that was in force has ended.
  bool step(Seconds measured);
  /// The spans of the next step are wanted.
  bool wants_trace() const { return suspicious_ && wait_ == 0; }
  /// What a traced step showed. Returns true when that is news: a drift that is now in force, and
  /// was not, or for another cause.
  bool traced(const Drift& seen);
  /// The median of the last steps; 0 before there are enough.
  Seconds recent_step() const { return median_; }
  const std::optional<DriftCause>& in_force() const { return in_force_; }

 private:
  double off(Seconds measured) const;
  Seconds predicted_;
  std::deque<Seconds> recent_;
  Seconds median_ = 0;
  bool suspicious_ = false;
  std::optional<DriftCause> in_force_, candidate_;
  std::uint32_t wait_ = 0;      ///< steps until the next look
  std::uint32_t tries_ = 0;     ///< looks that did not agree
  std::uint32_t interval_ = 0;  ///< steps between looks at a drift that is known
};

}  // namespace troupe
