// What a schedule must be, and what its order holds at once. Its text form: schedule_text.cpp.
#include "planner/schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "planner/prerequisites.h"
#include "planner/schedule_cursor.h"

namespace troupe {
namespace {

Error refuse(std::string text) {
  return {ErrorCode::invalid_input, std::move(text)};
}

bool is_transfer(Op op) {
  return op == Op::transfer_forward || op == Op::transfer_backward || op == Op::transfer_tied;
}

}  // namespace

StageMap looped_stages(std::uint32_t devices, std::uint32_t microbatches, std::uint32_t loops) {
  StageMap map;
  for (std::uint32_t s = 0; s < devices * loops; ++s)
    map.device_of_stage.push_back(DeviceId{s % devices});
  map.device_count = devices;
  map.microbatch_count = microbatches;
  return map;
}

std::vector<Action> prerequisites(const Action& action,
                                  const StageMap& stages,
                                  bool split_backward) {
  std::vector<Action> list;
  for_each_prerequisite(action, stages, split_backward, [&](const Action& prerequisite) {
    list.push_back(prerequisite);
    return true;
  });
  return list;
}

namespace {

/// Peak over the stage's lane of (opened - closed), counting a closing one until its end.
std::vector<std::uint32_t> peak_open(const Schedule& schedule, Op opens, Op closes) {
  std::vector<std::uint32_t> open(schedule.stages.stage_count());
  std::vector<std::uint32_t> peak(schedule.stages.stage_count());
  for (const auto& lane : schedule.devices)
    for (const Action& action : lane) {
      const std::size_t stage = action.stage.index();
      if (action.op == opens) peak[stage] = std::max(peak[stage], ++open[stage]);
      if (action.op == closes && open[stage] > 0) --open[stage];
    }
  return peak;
}

}  // namespace

std::vector<std::uint32_t> in_flight_per_stage(const Schedule& schedule) {
  return peak_open(schedule, Op::forward,
                   schedule.split_backward ? Op::backward_weight : Op::backward);
}

std::vector<std::uint32_t> deferred_per_stage(const Schedule& schedule) {
  return peak_open(schedule, Op::backward_input, Op::backward_weight);
}

namespace {

Status check_stage_map(const Schedule& schedule) {
  const StageMap& stages = schedule.stages;
  if (stages.device_of_stage.empty()) return refuse("schedule: there is no stage");
  if (stages.microbatch_count == 0) return refuse("schedule: there is no microbatch");
  if (stages.transfer_slots == 0)
    return refuse("schedule: transfer_slots is 0; a transfer needs at least 1");
  if (stages.chains == 0 || stages.stage_count() % stages.chains != 0)
    return refuse(fmt::format("schedule: {} stages cannot be cut into {} chains of one length",
                              stages.stage_count(), stages.chains));
  if (schedule.devices.size() != stages.device_count)
    return refuse(fmt::format("schedule: {} device lanes for {} devices", schedule.devices.size(),
                              stages.device_count));
  for (std::uint32_t s = 0; s < stages.stage_count(); ++s)
    if (stages.device_of_stage[s].value >= stages.device_count)
      return refuse(fmt::format("schedule: stage {} is on device {}, but there are {} devices", s,
                                stages.device_of_stage[s].value, stages.device_count));
  for (std::size_t i = 0; i < schedule.links.size(); ++i) {
    const LinkLane& link = schedule.links[i];
    const std::string name = fmt::format("d{}>d{}", link.from.value, link.to.value);
    if (std::max(link.from, link.to).value >= stages.device_count || link.from == link.to)
      return refuse(fmt::format("schedule: lane {} does not join two of the {} devices", name,
                                stages.device_count));
    for (std::size_t j = 0; j < i; ++j)
      if (schedule.links[j].from == link.from && schedule.links[j].to == link.to)
        return refuse(fmt::format("schedule: lane {} appears twice", name));
  }
  return {};
}

/// The lane that an action belongs to: a device, or a link (from, to).
std::pair<DeviceId, DeviceId> home_of(const Action& action, const StageMap& stages) {
  const DeviceId own = stages.device_of_stage[action.stage.index()];
  const std::uint32_t s = action.stage.value;
  if (action.op == Op::transfer_forward)
    return {own, stages.device_of_stage[stages.ends_chain(s) ? s : s + 1]};
  if (action.op == Op::transfer_backward)
    return {own, stages.device_of_stage[stages.starts_chain(s) ? s : s - 1]};
  if (action.op == Op::transfer_tied) {
    const auto other = other_tied_end(action.stage, stages);
    return {own, other ? stages.device_of_stage[other->index()] : own};
  }
  return {own, own};
}

/// Checks one lane: right home, nothing twice, microbatches in order per stage and op.
class LaneChecker {
 public:
  explicit LaneChecker(const Schedule& schedule)
      : schedule_(schedule), next_(std::size_t{9} * schedule.stages.stage_count()) {}

  Status lane(const std::string& name,
              DeviceId from,
              DeviceId to,
              const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      const std::string text = to_string(action);
      if (action.stage.value >= schedule_.stages.stage_count() ||
          action.microbatch.value >= schedule_.stages.microbatch_count)
        return refuse(
            fmt::format("schedule: {} names a stage or microbatch beyond {} stages and "
                        "{} microbatches",
                        text, schedule_.stages.stage_count(), schedule_.stages.microbatch_count));
      const bool split = action.op == Op::backward_input || action.op == Op::backward_weight;
      if ((split && !schedule_.split_backward) ||
          (action.op == Op::backward && schedule_.split_backward))
        return refuse(fmt::format("schedule: {} mixes fused and split backward", text));
      if (is_transfer(action.op) != (from != to) ||
          home_of(action, schedule_.stages) != std::pair{from, to})
        return refuse(
            fmt::format("schedule: {} stands on lane {}, where it does not belong", text, name));
      std::uint32_t& next =
          next_[static_cast<std::size_t>(action.op) * schedule_.stages.stage_count() +
                action.stage.index()];
      if (action.microbatch.value != next)
        return refuse(fmt::format(
            "schedule: {} on lane {} is {}; per stage and kind, microbatches "
            "run 0, 1, 2, ..., each once",
            text, name,
            action.microbatch.value < next ? "there twice or out of order" : "ahead of its turn"));
      ++next;
    }
    return {};
  }

  /// What is missing, after all lanes.
  Status complete() const {
    const StageMap& stages = schedule_.stages;
    const std::uint32_t last = stages.stage_count() - 1;
    for (std::uint32_t s = 0; s <= last; ++s) {
      const auto other = other_tied_end(StageId{s}, stages);
      const bool split = schedule_.split_backward;
      const std::uint32_t all = stages.microbatch_count;
      const std::pair<Op, std::uint32_t> wanted[] = {
          {Op::forward, all},
          {Op::backward, split ? 0 : all},
          {Op::backward_input, split ? all : 0},
          {Op::backward_weight, split ? all : 0},
          {Op::transfer_forward, !stages.ends_chain(s) && !same_device(s, s + 1, stages) ? all : 0},
          {Op::transfer_backward,
           !stages.starts_chain(s) && !same_device(s, s - 1, stages) ? all : 0},
          {Op::transfer_tied, other && !same_device(s, other->value, stages) ? 1u : 0u},
          {Op::norm, 1},
          {Op::update, 1}};
      for (const auto& [op, count] : wanted) {
        const std::uint32_t found = next_[static_cast<std::size_t>(op) * stages.stage_count() + s];
        if (found < count)
          return refuse(fmt::format("schedule: {} is missing",
                                    to_string(Action{op, StageId{s}, MicrobatchId{found}})));
        if (found > count)
          return refuse(fmt::format("schedule: {} has no place in this schedule",
                                    to_string(Action{op, StageId{s}, MicrobatchId{count}})));
      }
    }
    return {};
  }

 private:
  const Schedule& schedule_;
  std::vector<std::uint32_t> next_;  ///< by op and stage: the microbatch whose turn it is
};

Status check_reaches_end(const Schedule& schedule) {
  ScheduleRun run(schedule);
  std::vector<std::size_t> open(run.lane_count());
  for (std::size_t lane = 0; lane < open.size(); ++lane) open[lane] = lane;
  while (!open.empty()) {
    const std::size_t lane = open.back();
    open.pop_back();
    while (run.cursor(lane).next_ready()) {
      run.cursor(lane).start_next();
      for (const std::size_t told : run.finish(lane))
        if (told != lane && run.cursor(told).next_ready()) open.push_back(told);
    }
  }
  if (run.done()) return {};
  return refuse("schedule: deadlock: " + run.waiting());
}

}  // namespace

Status validate(const Schedule& schedule, const std::vector<std::uint32_t>& in_flight_limits) {
  TROUPE_TRY(check_stage_map(schedule));
  LaneChecker checker(schedule);
  for (std::uint32_t d = 0; d < schedule.devices.size(); ++d)
    TROUPE_TRY(checker.lane(fmt::format("d{}", d), DeviceId{d}, DeviceId{d}, schedule.devices[d]));
  for (const LinkLane& link : schedule.links)
    TROUPE_TRY(checker.lane(fmt::format("d{}>d{}", link.from.value, link.to.value), link.from,
                            link.to, link.actions));
  TROUPE_TRY(checker.complete());
  TROUPE_TRY(check_reaches_end(schedule));
  if (in_flight_limits.empty()) return {};
  const auto in_flight = in_flight_per_stage(schedule);
  if (in_flight_limits.size() != in_flight.size())
    return refuse(fmt::format("schedule: {} in-flight limits for {} stages",
                              in_flight_limits.size(), in_flight.size()));
  for (std::size_t s = 0; s < in_flight.size(); ++s)
    if (in_flight[s] > in_flight_limits[s])
      return refuse(
          fmt::format("schedule: stage {} holds {} microbatches at once, over its limit "
                      "of {}",
                      s, in_flight[s], in_flight_limits[s]));
  return {};
}

}  // namespace troupe
