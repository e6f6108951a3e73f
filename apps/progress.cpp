#include "apps/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <vector>

namespace troupe {
namespace {

constexpr std::size_t recent_steps = 20;
constexpr Seconds terminal_interval = 0.1;
constexpr Seconds plain_interval = 5;

}  // namespace

std::string format_clock(Seconds seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 3.6e9) return "?";
  const auto whole = static_cast<std::uint64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string progress_line(const StepRow& row, std::uint64_t total_steps, Seconds seconds) {
  const double rate = row.seconds > 0 ? static_cast<double>(row.tokens) / row.seconds : 0;
  const std::uint64_t left = total_steps > row.step ? total_steps - row.step : 0;
  return fmt::format("step {}/{}  loss {:.4f}  {:.0f} tokens/s  {} left{}", row.step, total_steps,
                     row.loss(), rate, format_clock(seconds * static_cast<double>(left)),
                     row.skipped ? "  (skipped: a gradient is not finite)" : "");
}

Progress::Progress(std::ostream& out, bool terminal, std::uint64_t total_steps)
    : out_(out), terminal_(terminal), total_(total_steps) {}

void Progress::step(const StepRow& row) {
  recent_.push_back(row.seconds);
  if (recent_.size() > recent_steps) recent_.pop_front();
  since_shown_ += row.seconds;
  const bool due = since_shown_ >= (terminal_ ? terminal_interval : plain_interval);
  if (shown_any_ && !due && row.step != total_ && !row.skipped) return;
  shown_any_ = true;
  since_shown_ = 0;
  std::vector<Seconds> sorted(recent_.begin(), recent_.end());
  std::sort(sorted.begin(), sorted.end());
  const std::string line = progress_line(row, total_, sorted[sorted.size() / 2]);
  if (terminal_) {
    out_ << "\r\033[K" << line << std::flush;
    line_open_ = true;
  } else {
    out_ << line << '\n' << std::flush;
  }
}

void Progress::note(const std::string& text) {
  finish();
  out_ << text << '\n' << std::flush;
}

void Progress::finish() {
  if (line_open_) out_ << '\n' << std::flush;
  line_open_ = false;
}

}  // namespace troupe
