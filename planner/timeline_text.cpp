/// Timelines for terminals.
#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>

#include "planner/timeline.h"

namespace troupe {
namespace {

constexpr char letters[] = "FBIW---NU";  // by Op
constexpr std::size_t letter_count = 9;

/// Seconds of each op in each column of one row.
using Columns = std::vector<std::array<double, letter_count>>;

void add_span(Columns& columns, const Span& span, Seconds per_column) {
  const auto last_column = static_cast<double>(columns.size()) - 1;
  const auto column_of = [&](Seconds at) {
    return static_cast<std::size_t>(std::clamp(std::floor(at / per_column), 0.0, last_column));
  };
  for (std::size_t c = column_of(span.begin); c <= column_of(span.end); ++c) {
    const Seconds begin = static_cast<double>(c) * per_column;
    const Seconds part = std::min(span.end, begin + per_column) - std::max(span.begin, begin);
    if (part > 0) columns[c][static_cast<std::size_t>(span.action.op)] += part;
  }
}

/// What takes most of a column, idleness included; a transfer, which is short, whatever it takes.
char letter_of(const std::array<double, letter_count>& seconds, Seconds per_column) {
  double idle = per_column;
  for (const double one : seconds) idle -= one;
  const auto most = std::max_element(seconds.begin(), seconds.end());
  const bool transfer = letters[most - seconds.begin()] == '-';
  if (!(*most > 0) || (*most < idle && !transfer)) return '.';
  return letters[most - seconds.begin()];
}

}  // namespace

std::string timeline_text(const Timeline& timeline,
                          const std::vector<std::string>& device_names,
                          std::size_t width,
                          Seconds length) {
  EXPECTS(width > 0);
  if (!(length > 0)) length = timeline.makespan();
  if (timeline.spans.empty() || !(length > 0) || !std::isfinite(length))
    return "nothing takes any time\n";
  const Seconds per_column = length / static_cast<double>(width);
  std::unordered_map<std::string, Columns> rows;
  for (const Span& span : timeline.spans) {
    Columns& row = rows.try_emplace(span.lane, width).first->second;
    add_span(row, span, per_column);
  }
  std::size_t title_width = 0;
  const auto lanes = lanes_of(timeline);
  for (const std::string& lane : lanes)
    title_width = std::max(title_width, lane_title(lane, device_names).size());

  const std::string end = format_seconds(length);
  const std::string axis(width > end.size() + 1 ? width - end.size() - 1 : 1, ' ');
  std::string text = std::string(title_width + 2, ' ') + "0" + axis + end + "\n";
  for (const std::string& lane : lanes) {
    std::string row = lane_title(lane, device_names);
    row.resize(title_width + 2, ' ');
    for (const auto& column : rows.at(lane)) row += letter_of(column, per_column);
    text += row + "\n";
  }
  return text;
}

}  // namespace troupe
