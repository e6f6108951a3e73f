#include "apps/timeline_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>

#include "apps/html.h"

namespace troupe {
namespace {

constexpr std::size_t most_spans = 6000;

/// Of a file of its own: as the page's (apps/html.cpp).
constexpr const char* svg_style =
    "text{font-size:11.5px;fill:#5d6b7a}text.lane{text-anchor:end;fill:#1d2733;font-size:12.5px}"
    "text.op{text-anchor:middle;fill:#fff;font-size:10.5px}.idle{fill:#f1f4f7}";

struct OpStyle {
  Op op;
  const char* name;
  const char* color;
};
constexpr std::array op_styles{
    OpStyle{Op::forward, "forward", "#4c8bd6"},
    OpStyle{Op::backward, "backward", "#3aa57a"},
    OpStyle{Op::backward_input, "input gradient", "#2f9c95"},
    OpStyle{Op::backward_weight, "weight gradient", "#a9c256"},
    OpStyle{Op::transfer_forward, "activations on a link", "#9db8dd"},
    OpStyle{Op::transfer_backward, "gradients on a link", "#9fd0bb"},
    OpStyle{Op::transfer_tied, "tied gradient on a link", "#d9a7c7"},
    OpStyle{Op::norm, "gradient norm", "#e0a33e"},
    OpStyle{Op::update, "update", "#d9694f"},
};
const OpStyle& style_of(Op op) {
  for (const OpStyle& style : op_styles)
    if (style.op == op) return style;
  return op_styles.front();
}

std::string span_rect(const Span& span, double x, double width, double y, double height) {
  const OpStyle& style = style_of(span.action.op);
  const std::string label = to_string(span.action);
  std::string out = fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"><title>{} "
      "{}: "
      "{} to {}</title></rect>",
      x, y, std::max(width, 0.4), height, style.color, label, style.name,
      format_seconds(span.begin), format_seconds(span.end));
  if (width > 7.0 * static_cast<double>(label.size()) && height > 15)
    out += fmt::format("<text class=\"op\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", x + width / 2,
                       y + height / 2 + 3.5, label);
  return out + "\n";
}

/// Rows, spans and axis below `top`, with the height that they reach.
struct Drawing {
  std::string body;
  double bottom = 0;
};

Drawing draw(const Timeline& timeline, const ClusterSpec& cluster, Seconds length, double top) {
  const auto names = device_names(cluster);
  constexpr double left = 150;
  const double scale = (chart_width - left - 10) / length;
  std::map<std::string, std::pair<double, double>> places;  // top and height by lane
  Drawing drawing;
  double y = top;
  for (const std::string& lane : lanes_of(timeline)) {
    const double height = lane.find('>') == std::string::npos ? 26 : 12;
    places[lane] = {y, height};
    drawing.body += fmt::format(
        "<text class=\"lane\" x=\"{}\" y=\"{:.1f}\">{}</text><rect class=\"idle\" "
        "x=\"{}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n",
        left - 8, y + height / 2 + 4, escape_html(lane_title(lane, names)), left, y, length * scale,
        height);
    y += height + 5;
  }
  for (std::size_t i = 0; i < std::min(timeline.spans.size(), most_spans); ++i) {
    const Span& span = timeline.spans[i];
    const auto [row, height] = places[span.lane];
    drawing.body +=
        span_rect(span, left + span.begin * scale, (span.end - span.begin) * scale, row, height);
  }
  for (const double t : marks_of(0, length * 1.0001, round_step(length)))
    drawing.body += fmt::format(
        "<text class=\"mark\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
        left + t * scale, y + 14, t == 0 ? "0" : format_seconds(t));
  drawing.bottom = y + 22;
  return drawing;
}

bool occurs(Op op, const Timeline& timeline) {
  return std::any_of(timeline.spans.begin(), timeline.spans.end(),
                     [&](const Span& span) { return span.action.op == op; });
}

}  // namespace

std::string timeline_chart(const Timeline& timeline, const ClusterSpec& cluster, Seconds length) {
  if (timeline.spans.empty()) return "<p>Nothing was recorded.</p>\n";
  if (!(length > 0)) length = timeline.makespan();
  if (!std::isfinite(length)) return "<p>The times are not finite.</p>\n";
  if (!(length > 0)) length = 1e-9;
  const Drawing drawing = draw(timeline, cluster, length, 4);
  std::string out = fmt::format(
      "<svg viewBox=\"0 0 {} {:.0f}\" role=\"img\" aria-label=\"Timeline\">\n{}</svg>\n",
      chart_width, drawing.bottom, drawing.body);
  if (timeline.spans.size() > most_spans)
    out += fmt::format("<p>The first {} of {} spans.</p>\n", most_spans, timeline.spans.size());
  return out;
}

std::string timeline_legend(const std::vector<const Timeline*>& timelines) {
  std::string out = "<p class=\"legend\">";
  for (const OpStyle& style : op_styles)
    if (std::any_of(timelines.begin(), timelines.end(),
                    [&](const Timeline* timeline) { return occurs(style.op, *timeline); }))
      out += swatch(style.color, style.name);
  return out + "</p>\n";
}

std::string timeline_svg(const std::string& title,
                         const Timeline& timeline,
                         const ClusterSpec& cluster) {
  const Seconds length = timeline.makespan();
  EXPECTS(!timeline.spans.empty() && length > 0 && std::isfinite(length));
  const Drawing drawing = draw(timeline, cluster, length, 34);
  std::string legend;
  double x = 8;
  for (const OpStyle& style : op_styles) {
    if (!occurs(style.op, timeline)) continue;
    legend += fmt::format(
        "<rect x=\"{0:.0f}\" y=\"{1:.0f}\" width=\"11\" height=\"11\" fill=\"{2}\"/>"
        "<text x=\"{3:.0f}\" y=\"{4:.0f}\">{5}</text>\n",
        x, drawing.bottom + 6, style.color, x + 16, drawing.bottom + 16, style.name);
    x += 28 + 6.2 * static_cast<double>(std::char_traits<char>::length(style.name));
  }
  const std::string rest =
      timeline.spans.size() > most_spans
          ? fmt::format(" (the first {} of {} spans)", most_spans, timeline.spans.size())
          : std::string{};
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1:.0f}\" width=\"{0}\" "
      "height=\"{1:.0f}\" font-family=\"system-ui, sans-serif\">\n<style>{2}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
      "<text x=\"8\" y=\"20\" style=\"font-size: 14px; fill: "
      "#1d2733\">{3}{4}</text>\n{5}{6}</svg>\n",
      chart_width, drawing.bottom + 28, svg_style, escape_html(title), rest, drawing.body, legend);
}

}  // namespace troupe
