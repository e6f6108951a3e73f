/// The progress of a run on the screen: one line that is written over on a terminal, plain lines
/// now and then where output goes to a file or a pipe. Without a clock: time is what steps took.
#pragma once

#include <cstdint>
#include <deque>
#include <iosfwd>
#include <string>

#include "actors/step_row.h"

namespace troupe {

class Progress {
 public:
  Progress(std::ostream& out, bool terminal, std::uint64_t total_steps);
  /// After each step. Shown at most every 0.1 s of step time on a terminal, every 5 s elsewhere;
  /// the first and the last step always.
  void step(const StepRow& row);
  /// A line that stays.
  void note(const std::string& text);
  /// Leaves the cursor on a fresh line.
  void finish();

 private:
  std::ostream& out_;
  bool terminal_;
  std::uint64_t total_;
  std::deque<Seconds> recent_;  ///< seconds of the last steps
  Seconds since_shown_ = 0;
  bool shown_any_ = false;
  bool line_open_ = false;
};

/// "step 12/250  loss 3.1234  12300 tokens/s  1:05 left". `seconds`: of a typical step now.
std::string progress_line(const StepRow& row, std::uint64_t total_steps, Seconds seconds);

/// "45 s" as "0:45", an hour and more as "1:02:03".
std::string format_clock(Seconds seconds);

}  // namespace troupe
