#include "planner/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "planner/prerequisites.h"
#include "planner/schedule_cursor.h"

namespace troupe {
namespace {

struct OpName {
  std::string_view text;
  Op op;
  bool has_microbatch;
};

/// Longer names first, so that a prefix match finds the right one.
constexpr std::array<OpName, 9> op_names{{{"XF", Op::transfer_forward, true},
                                          {"XB", Op::transfer_backward, true},
                                          {"XT", Op::transfer_tied, false},
                                          {"F", Op::forward, true},
                                          {"B", Op::backward, true},
                                          {"I", Op::backward_input, true},
                                          {"W", Op::backward_weight, true},
                                          {"N", Op::norm, false},
                                          {"U", Op::update, false}}};

const OpName& name_of(Op op) {
  return *std::find_if(op_names.begin(), op_names.end(), [&](auto& n) { return n.op == op; });
}

Error refuse(std::string text) {
  return {ErrorCode::invalid_input, std::move(text)};
}

bool is_transfer(Op op) {
  return op == Op::transfer_forward || op == Op::transfer_backward || op == Op::transfer_tied;
}

/// Reads digits alone: no sign, no space.
bool take_number(std::string_view& text, std::uint32_t& number) {
  if (text.empty() || text.front() < '0' || text.front() > '9') return false;
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc{}) return false;
  text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
  return true;
}

}  // namespace

std::string to_string(const Action& action) {
  const OpName& name = name_of(action.op);
  if (!name.has_microbatch) return fmt::format("{}{}", name.text, action.stage.value);
  return fmt::format("{}{}.{}", name.text, action.stage.value, action.microbatch.value);
}

Result<Action> parse_action(std::string_view text) {
  const auto wrong = [&] {
    return refuse(fmt::format(
        "\"{}\" is not an action; actions read like F0.1, B0.1, I0.1, W0.1, XF0.1, XB1.1, XT0, N0 "
        "or U0",
        text.substr(0, 40)));
  };
  for (const OpName& name : op_names) {
    if (text.substr(0, name.text.size()) != name.text) continue;
    std::string_view rest = text.substr(name.text.size());
    Action action;
    action.op = name.op;
    if (!take_number(rest, action.stage.value)) return wrong();
    if (name.has_microbatch) {
      if (rest.empty() || rest.front() != '.') return wrong();
      rest.remove_prefix(1);
      if (!take_number(rest, action.microbatch.value)) return wrong();
    }
    if (!rest.empty()) return wrong();
    return action;
  }
  return wrong();
}

std::string_view to_string(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::gpipe: return "gpipe";
    case ScheduleKind::one_f_one_b: return "1f1b";
    case ScheduleKind::interleaved: return "interleaved";
    case ScheduleKind::zero_bubble_h1: return "zb-h1";
  }
  return "unknown";
}

Result<ScheduleKind> parse_schedule_kind(std::string_view text) {
  for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                                  ScheduleKind::interleaved, ScheduleKind::zero_bubble_h1})
    if (text == to_string(kind)) return kind;
  return refuse(fmt::format(
      "\"{}\" is not a schedule; there are \"gpipe\", \"1f1b\", \"interleaved\" and \"zb-h1\"",
      text.substr(0, 40)));
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

std::string to_text(const Schedule& schedule) {
  std::string text;
  const auto add_lane = [&](const std::string& name, const std::vector<Action>& lane) {
    text += name + ":";
    for (const Action& action : lane) text += " " + to_string(action);
    text += "\n";
  };
  for (std::size_t d = 0; d < schedule.devices.size(); ++d)
    if (!schedule.devices[d].empty()) add_lane(fmt::format("d{}", d), schedule.devices[d]);
  for (const LinkLane& link : schedule.links)
    add_lane(fmt::format("d{}>d{}", link.from.value, link.to.value), link.actions);
  return text;
}

namespace {

/// Parses the text form line by line; errors name line and column.
class ScheduleParser {
 public:
  explicit ScheduleParser(const StageMap& stages) {
    schedule_.stages = stages;
    schedule_.devices.resize(stages.device_count);
  }

  Status line(std::string_view text, std::size_t number) {
    line_ = number;
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) return {};
    const std::size_t colon = text.find(':');
    if (colon == std::string_view::npos) return wrong(1, "a lane reads \"d0: F0.0 ...\"");
    const auto lane = lane_of(text.substr(0, colon));
    if (!lane) return lane.error();
    std::size_t at = colon + 1;
    while ((at = text.find_first_not_of(" \t\r", at)) != std::string_view::npos) {
      const std::size_t end = std::min(text.find_first_of(" \t\r", at), text.size());
      const auto action = parse_action(text.substr(at, end - at));
      if (!action) return wrong(at + 1, action.error().text);
      if (action->stage.value >= schedule_.stages.stage_count())
        return wrong(at + 1, fmt::format("there are {} stages", schedule_.stages.stage_count()));
      if (action->microbatch.value >= schedule_.stages.microbatch_count)
        return wrong(at + 1,
                     fmt::format("there are {} microbatches", schedule_.stages.microbatch_count));
      if (action->op == Op::backward_input || action->op == Op::backward_weight)
        schedule_.split_backward = true;
      (*lane)->push_back(*action);
      at = end;
    }
    return {};
  }
  Schedule take() { return std::move(schedule_); }

 private:
  Error wrong(std::size_t column, const std::string& why) const {
    return refuse(fmt::format("schedule:{}:{}: {}", line_, column, why));
  }
  Result<std::vector<Action>*> lane_of(std::string_view name) {
    const std::string_view whole = name;
    const auto bad = [&] {
      return wrong(1, fmt::format("\"{}\" is not a lane of {} devices; lanes are d0 or d0>d1",
                                  whole.substr(0, 40), schedule_.stages.device_count));
    };
    std::uint32_t from = 0;
    std::uint32_t to = 0;
    const auto device = [&](std::uint32_t& number) {
      if (name.empty() || name.front() != 'd') return false;
      name.remove_prefix(1);
      return take_number(name, number) && number < schedule_.stages.device_count;
    };
    if (!device(from)) return bad();
    if (name.empty()) {
      if (!schedule_.devices[from].empty()) return wrong(1, "this lane appears twice");
      return &schedule_.devices[from];
    }
    if (name.front() != '>') return bad();
    name.remove_prefix(1);
    if (!device(to) || !name.empty() || from == to) return bad();
    for (const LinkLane& link : schedule_.links)
      if (link.from.value == from && link.to.value == to)
        return wrong(1, "this lane appears twice");
    schedule_.links.push_back({DeviceId{from}, DeviceId{to}, {}});
    return &schedule_.links.back().actions;
  }

  Schedule schedule_;
  std::size_t line_ = 0;
};

}  // namespace

Result<Schedule> parse_schedule(std::string_view text, const StageMap& stages) {
  ScheduleParser parser(stages);
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    TROUPE_TRY(parser.line(text.substr(0, end), ++number));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parser.take();
}

namespace {

Status check_stage_map(const Schedule& schedule) {
  const StageMap& stages = schedule.stages;
  if (stages.device_of_stage.empty()) return refuse("schedule: there is no stage");
  if (stages.microbatch_count == 0) return refuse("schedule: there is no microbatch");
  if (stages.transfer_slots == 0)
    return refuse("schedule: transfer_slots is 0; a transfer needs at least 1");
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
  const std::uint32_t last = stages.stage_count() - 1;
  if (action.op == Op::transfer_forward)
    return {own, stages.device_of_stage[std::min(s + 1, last)]};
  if (action.op == Op::transfer_backward) return {own, stages.device_of_stage[s > 0 ? s - 1 : 0]};
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
          {Op::transfer_forward, s < last && !same_device(s, s + 1, stages) ? all : 0},
          {Op::transfer_backward, s > 0 && !same_device(s, s - 1, stages) ? all : 0},
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
