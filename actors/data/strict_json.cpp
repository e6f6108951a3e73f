#include "actors/data/strict_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

namespace troupe {
namespace {

using nlohmann::json;

/// Watches the parser: one set of keys for each open object.
class Watch {
 public:
  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    if (depth > json_depth_limit) too_deep = true;
    switch (event) {
      case json::parse_event_t::object_start: open_.emplace_back(); break;
      case json::parse_event_t::object_end:
        if (!open_.empty()) open_.pop_back();
        break;
      case json::parse_event_t::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        if (!open_.empty() && !open_.back().insert(key).second && !repeated)
          repeated = printable(key);
        break;
      }
      default: break;
    }
    return !too_deep;
  }

  bool too_deep = false;
  std::optional<std::string> repeated;

 private:
  std::vector<std::set<std::string>> open_;
};

}  // namespace

std::string position_in(std::string_view text, std::size_t offset) {
  offset = std::min(offset, text.size());
  const auto before = text.substr(0, offset);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const auto start = before.rfind('\n');
  const auto column = offset - (start == std::string_view::npos ? 0 : start + 1) + 1;
  return fmt::format("{}:{}", line, column);
}

Result<json> parse_json(std::string_view text, std::string_view file) {
  Watch watch;
  try {
    json parsed = json::parse(text.begin(), text.end(), std::ref(watch));
    if (watch.too_deep)
      return Error{ErrorCode::invalid_input,
                   fmt::format("{}: nested deeper than {} levels", file, json_depth_limit)};
    if (watch.repeated)
      return Error{ErrorCode::invalid_input,
                   fmt::format("{}: key \"{}\" is repeated", file, *watch.repeated)};
    return parsed;
  } catch (const json::parse_error& problem) {
    const std::size_t offset = std::min(problem.byte > 0 ? problem.byte - 1 : 0, text.size());
    const std::string rest = printable(text.substr(offset, 20));
    return Error{ErrorCode::invalid_input,
                 fmt::format("{}:{}: not valid JSON: {}", file, position_in(text, offset),
                             rest.empty() ? std::string("the text ends too early")
                                          : fmt::format("unexpected \"{}\"", rest))};
  } catch (const std::exception& problem) {
    return Error{ErrorCode::invalid_input,
                 fmt::format("{}: not valid JSON: {}", file, problem.what())};
  }
}

}  // namespace troupe
