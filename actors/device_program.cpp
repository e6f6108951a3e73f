#include "actors/device_program.h"

#include <fmt/format.h>

#include <algorithm>

namespace troupe {

std::optional<StageId> receiver_of(const Action& transfer, const StageMap& stages) {
  const std::uint32_t s = transfer.stage.value;
  if (s >= stages.stage_count() || transfer.microbatch.value >= stages.microbatch_count)
    return std::nullopt;
  switch (transfer.op) {
    case Op::transfer_forward:
      return s + 1 < stages.stage_count() ? std::optional(StageId{s + 1}) : std::nullopt;
    case Op::transfer_backward: return s > 0 ? std::optional(StageId{s - 1}) : std::nullopt;
    case Op::transfer_tied: return other_tied_end(transfer.stage, stages);
    default: return std::nullopt;
  }
}

DeviceProgram::DeviceProgram(const Schedule& schedule, DeviceId device, Kind kind)
    : schedule_(&schedule),
      device_(device),
      kind_(kind),
      lane_(schedule, device),
      noted_(schedule.stages) {
  for (const LinkLane& link : schedule.links)
    if (link.from == device) sending_.push_back({link.to, ScheduleCursor(schedule, link)});
}

void DeviceProgram::reset() {
  lane_.reset();
  for (Sending& sending : sending_) sending.cursor.reset();
  handed_over_.clear();
  noted_.clear();
  updates_allowed_ = false;
}

bool DeviceProgram::gate_is_open(const Action& action) const {
  const StageMap& stages = schedule_->stages;
  const std::uint32_t next = action.stage.value + 1;
  const std::uint32_t m = action.microbatch.value;
  if (kind_ == Kind::training || next >= stages.stage_count() || m < stages.transfer_slots)
    return true;
  if (same_device(next, action.stage.value, stages)) return true;  // earlier in this lane
  return noted_.contains({Op::forward, StageId{next}, MicrobatchId{m - stages.transfer_slots}});
}

std::optional<Action> DeviceProgram::take_action() {
  if (handed_over_.size() >= limit) return std::nullopt;
  const auto action = lane_.next_ready();
  if (!action || !gate_is_open(*action)) return std::nullopt;
  if (action->op == Op::update && !updates_allowed_) return std::nullopt;
  lane_.start_next();
  handed_over_.push_back(*action);
  if (action->op != Op::norm) lane_.note_finished(*action);
  return action;
}

std::optional<std::pair<Action, DeviceId>> DeviceProgram::take_transfer() {
  for (Sending& sending : sending_)
    if (const auto action = sending.cursor.next_ready()) {
      sending.cursor.start_next();
      return std::pair{*action, sending.to};
    }
  return std::nullopt;
}

void DeviceProgram::note_own(const Action& action) {
  EXPECTS(!handed_over_.empty() && handed_over_.front() == action);
  handed_over_.erase(handed_over_.begin());
  ++finished_;
  note_foreign(action);
}

void DeviceProgram::note_delivered(const Action& action) {
  ++finished_;
  note_foreign(action);
}

void DeviceProgram::note_foreign(const Action& action) {
  if (kind_ == Kind::evaluation) noted_.insert(action);
  lane_.note_finished(action);
  for (Sending& sending : sending_) sending.cursor.note_finished(action);
}

bool DeviceProgram::done() const {
  return lane_.done() && handed_over_.empty() &&
         std::all_of(sending_.begin(), sending_.end(),
                     [](const Sending& sending) { return sending.cursor.done(); });
}

std::string DeviceProgram::waiting() const {
  const auto head_of = [](const ScheduleCursor& cursor) {
    std::string text = to_string(*cursor.head()) + " for";
    const std::vector<Action> missing = cursor.missing();
    for (std::size_t i = 0; i < missing.size() && i < 4; ++i) text += " " + to_string(missing[i]);
    if (missing.size() > 4) text += fmt::format(" and {} more", missing.size() - 4);
    return text;
  };
  if (!handed_over_.empty())
    return fmt::format("d{} runs {}", device_.value, to_string(handed_over_.front()));
  for (const Sending& sending : sending_)
    if (const auto running = sending.cursor.running())
      return fmt::format("d{} sends {} to d{}", device_.value, to_string(*running),
                         sending.to.value);
  if (lane_.head()) return fmt::format("d{} waits at {}", device_.value, head_of(lane_));
  for (const Sending& sending : sending_)
    if (sending.cursor.head())
      return fmt::format("d{}>d{} waits at {}", device_.value, sending.to.value,
                         head_of(sending.cursor));
  return fmt::format("d{} is done", device_.value);
}

Schedule evaluation_schedule(const Schedule& training) {
  Schedule schedule;
  schedule.stages = training.stages;
  schedule.stages.tied = false;
  const auto keep = [](const std::vector<Action>& from, Op op) {
    std::vector<Action> to;
    std::copy_if(from.begin(), from.end(), std::back_inserter(to),
                 [&](const Action& action) { return action.op == op; });
    // One microbatch after the other through all stages of a device: no stage runs ahead of the
    // buffers that the next one frees.
    std::stable_sort(to.begin(), to.end(), [](const Action& a, const Action& b) {
      return std::pair(a.microbatch, a.stage) < std::pair(b.microbatch, b.stage);
    });
    return to;
  };
  for (const auto& lane : training.devices) schedule.devices.push_back(keep(lane, Op::forward));
  for (const LinkLane& link : training.links) {
    LinkLane lane{link.from, link.to, keep(link.actions, Op::transfer_forward)};
    if (!lane.actions.empty()) schedule.links.push_back(std::move(lane));
  }
  return schedule;
}

}  // namespace troupe
