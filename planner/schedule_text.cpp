// The text form of actions, kinds and schedules, written and read.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "planner/schedule.h"
#include "planner/schedule_families.h"

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
      "\"{}\" {}; there are \"gpipe\", \"1f1b\", \"interleaved\" and \"zb-h1\"", text.substr(0, 40),
      parse_schedule_family(text) ? "can be simulated, not yet executed" : "is not a schedule"));
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

}  // namespace troupe
