#include "planner/schedule_cursor.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace troupe {

ScheduleCursor::ScheduleCursor(const Schedule& schedule,
                               const std::vector<Action>& lane,
                               Finished finished)
    : stages_(&schedule.stages),
      lane_(&lane),
      split_backward_(schedule.split_backward),
      finished_(finished ? std::move(finished) : std::make_shared<ActionSet>(schedule.stages)) {}

ScheduleCursor::ScheduleCursor(const Schedule& schedule, DeviceId device, Finished finished)
    : ScheduleCursor(schedule, schedule.devices.at(device.index()), std::move(finished)) {}

ScheduleCursor::ScheduleCursor(const Schedule& schedule, const LinkLane& link, Finished finished)
    : ScheduleCursor(schedule, link.actions, std::move(finished)) {}

/// Finds out whether the head is blocked, once per change.
void ScheduleCursor::look() const {
  looked_ = true;
  blocker_.reset();
  for_each_prerequisite((*lane_)[next_], *stages_, split_backward_,
                        [&](const Action& prerequisite) {
                          if (finished_->contains(prerequisite)) return true;
                          blocker_ = prerequisite;
                          return false;
                        });
}

std::optional<Action> ScheduleCursor::next_ready() const {
  if (running_ || next_ == lane_->size()) return std::nullopt;
  if (!looked_) look();
  if (blocker_) return std::nullopt;
  return (*lane_)[next_];
}

void ScheduleCursor::start_next() {
  EXPECTS(next_ready().has_value());
  running_ = true;
  ++next_;
  looked_ = false;
}

void ScheduleCursor::note_finished(const Action& action) {
  if (running_ && action == (*lane_)[next_ - 1]) running_ = false;
  finished_->insert(action);
  if (looked_ && blocker_ == action) looked_ = false;
}

std::optional<Action> ScheduleCursor::running() const {
  if (!running_) return std::nullopt;
  return (*lane_)[next_ - 1];
}

std::optional<Action> ScheduleCursor::head() const {
  if (next_ == lane_->size()) return std::nullopt;
  return (*lane_)[next_];
}

std::vector<Action> ScheduleCursor::missing() const {
  std::vector<Action> list;
  if (next_ == lane_->size()) return list;
  for_each_prerequisite((*lane_)[next_], *stages_, split_backward_,
                        [&](const Action& prerequisite) {
                          if (!finished_->contains(prerequisite)) list.push_back(prerequisite);
                          return true;
                        });
  return list;
}

void ScheduleCursor::reset() {
  finished_->clear();
  rewind();
}

void ScheduleCursor::rewind() {
  next_ = 0;
  running_ = false;
  looked_ = false;
  blocker_.reset();
}

ScheduleRun::ScheduleRun(const Schedule& schedule) {
  const std::size_t devices = schedule.devices.size();
  const auto finished = std::make_shared<ActionSet>(schedule.stages);
  cursors_.reserve(devices + schedule.links.size());
  for (std::uint32_t d = 0; d < devices; ++d) {
    cursors_.emplace_back(schedule, DeviceId{d}, finished);
    names_.push_back(fmt::format("d{}", d));
  }
  told_by_.resize(devices + schedule.links.size());
  for (std::size_t i = 0; i < schedule.links.size(); ++i) {
    const LinkLane& link = schedule.links[i];
    cursors_.emplace_back(schedule, link, finished);
    names_.push_back(fmt::format("d{}>d{}", link.from.value, link.to.value));
    // An end of a link gives it work or room; the link gives its ends an input or a free buffer.
    for (const DeviceId end : {link.from, link.to}) {
      told_by_[end.index()].push_back(devices + i);
      told_by_[devices + i].push_back(end.index());
    }
  }
  for (std::size_t lane = 0; lane < told_by_.size(); ++lane) told_by_[lane].push_back(lane);
  devices_.resize(devices);
  std::iota(devices_.begin(), devices_.end(), std::size_t{0});
}

const std::vector<std::size_t>& ScheduleRun::finish(std::size_t lane) {
  const auto action = cursors_[lane].running();
  EXPECTS(action.has_value());
  const auto& lanes = action->op == Op::norm ? devices_ : told_by_[lane];
  for (const std::size_t told : lanes) cursors_[told].note_finished(*action);
  return lanes;
}

bool ScheduleRun::done() const {
  return std::all_of(cursors_.begin(), cursors_.end(), [](const auto& c) { return c.done(); });
}

std::string ScheduleRun::waiting() const {
  std::string text;
  for (std::size_t lane = 0; lane < cursors_.size(); ++lane) {
    const auto head = cursors_[lane].head();
    if (!head) continue;
    if (!text.empty()) text += "; ";
    text += fmt::format("{} waits at {} for", names_[lane], to_string(*head));
    const auto missing = cursors_[lane].missing();
    for (std::size_t i = 0; i < missing.size() && i < 4; ++i) text += " " + to_string(missing[i]);
    if (missing.size() > 4) text += fmt::format(" and {} more", missing.size() - 4);
    if (missing.empty()) text += " nothing";
  }
  return text;
}

void ScheduleRun::reset() {
  if (cursors_.empty()) return;
  cursors_.front().reset();  // the set of all
  for (ScheduleCursor& cursor : cursors_) cursor.rewind();
}

}  // namespace troupe
