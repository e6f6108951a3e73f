#include "apps/report_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace troupe {
namespace {

constexpr double chart_width = 1000;
constexpr std::size_t most_points = 1200;
constexpr std::size_t most_spans = 6000;

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

struct Category {
  const char* name;
  const char* color;
  Bytes MemoryPlan::*bytes;
};
constexpr std::array categories{
    Category{"weights", "#4c8bd6", &MemoryPlan::weights},
    Category{"gradients", "#3aa57a", &MemoryPlan::gradients},
    Category{"optimizer", "#8a6fc2", &MemoryPlan::optimizer},
    Category{"activations", "#e0a33e", &MemoryPlan::activations},
    Category{"workspace", "#d9694f", &MemoryPlan::workspace},
    Category{"transfer", "#8d99a8", &MemoryPlan::transfer},
};

std::string swatch(const char* color, const char* name) {
  return fmt::format("<span class=\"key\"><i style=\"background:{}\"></i>{}</span>", color, name);
}

/// A round step for about five marks over `range`.
double round_step(double range) {
  const double raw = range / 5;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= raw * 0.999) return factor * power;
  return 10 * power;
}

struct Point {
  double x = 0, y = 0;
};

/// At most `most_points` points: means of equal groups.
std::vector<Point> thinned(const std::vector<Point>& points) {
  if (points.size() <= most_points) return points;
  std::vector<Point> out;
  for (std::size_t group = 0; group < most_points; ++group) {
    const std::size_t first = group * points.size() / most_points;
    const std::size_t last = (group + 1) * points.size() / most_points;
    Point mean;
    for (std::size_t i = first; i < last; ++i) {
      mean.x += points[i].x;
      mean.y += points[i].y;
    }
    const auto count = static_cast<double>(last - first);
    out.push_back({mean.x / count, mean.y / count});
  }
  return out;
}

/// The frame that points are drawn in.
struct Axes {
  double x0 = 0, x1 = 1, y0 = 0, y1 = 1;
  static constexpr double left = 52, top = 12, right = 12, bottom = 30, height = 320;
  double px(double x) const { return left + (x - x0) / (x1 - x0) * (chart_width - left - right); }
  double py(double y) const {
    return height - bottom - (y - y0) / (y1 - y0) * (height - top - bottom);
  }
};

std::string polyline(const std::vector<Point>& points, const Axes& axes, const char* style) {
  std::string out = fmt::format("<polyline class=\"{}\" points=\"", style);
  for (const Point& point : points)
    out += fmt::format("{:.1f},{:.1f} ", axes.px(point.x), axes.py(point.y));
  return out + "\"/>\n";
}

std::string grid(const Axes& axes) {
  std::string out;
  const double y_step = round_step(axes.y1 - axes.y0);
  for (double y = std::ceil(axes.y0 / y_step) * y_step; y <= axes.y1; y += y_step)
    out += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text class=\"mark\" x=\"{3:.1f}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.4g}</text>\n",
        axes.left, chart_width - axes.right, axes.py(y), axes.left - 8, axes.py(y) + 4,
        std::abs(y) < y_step / 2 ? 0.0 : y);
  const double x_step = std::max(1.0, round_step(axes.x1 - axes.x0));
  for (double x = std::ceil(axes.x0 / x_step) * x_step; x <= axes.x1; x += x_step)
    out += fmt::format(
        "<text class=\"mark\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.0f}</text>\n",
        axes.px(x), axes.height - 10, x);
  return out;
}

/// "d0" and "d0>d1" with the devices' names.
std::string lane_name(const std::string& lane, const ClusterSpec& cluster) {
  std::string out;
  for (std::size_t at = 0; at < lane.size();) {
    if (lane[at] == 'd' && at + 1 < lane.size() && lane[at + 1] >= '0' && lane[at + 1] <= '9') {
      std::size_t index = 0;
      ++at;
      for (; at < lane.size() && lane[at] >= '0' && lane[at] <= '9' && index < 1000000; ++at)
        index = index * 10 + static_cast<std::size_t>(lane[at] - '0');
      out +=
          index < cluster.devices.size() ? cluster.devices[index].name : fmt::format("d{}", index);
    } else {
      out += lane[at] == '>' ? std::string(" to ") : std::string(1, lane[at]);
      ++at;
    }
  }
  return out;
}

/// Devices first, in order, then links.
bool lane_before(const std::string& a, const std::string& b) {
  const bool link_a = a.find('>') != std::string::npos;
  const bool link_b = b.find('>') != std::string::npos;
  if (link_a != link_b) return link_b;
  return a.size() != b.size() ? a.size() < b.size() : a < b;
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

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t length = byte < 0x80          ? 1
                               : (byte >> 5U) == 6  ? 2
                               : (byte >> 4U) == 14 ? 3
                               : (byte >> 3U) == 30 ? 4
                                                    : 0;
    bool whole = length > 0 && i + length <= text.size() && byte != 0xc0 && byte != 0xc1;
    for (std::size_t k = 1; whole && k < length; ++k)
      whole = (static_cast<unsigned char>(text[i + k]) & 0xc0U) == 0x80U;
    if (!whole || (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) {
      out += '?';
      continue;
    }
    switch (byte) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += text.substr(i, length);
    }
    i += length - 1;
  }
  return out;
}

std::string loss_chart(const std::vector<StepRow>& steps,
                       const std::vector<EvaluationRow>& evaluations,
                       double unigram_loss) {
  std::vector<Point> training;
  std::vector<Point> validation;
  for (const StepRow& step : steps)
    if (std::isfinite(step.loss()))
      training.push_back({static_cast<double>(step.step), step.loss()});
  for (const EvaluationRow& row : evaluations)
    if (std::isfinite(row.loss)) validation.push_back({static_cast<double>(row.step), row.loss});
  if (training.empty() && validation.empty()) return "<p>No step was finished.</p>\n";
  Axes axes{1e300, -1e300, 1e300, -1e300};
  for (const auto* points : {&training, &validation})
    for (const Point& point : *points) {
      axes.x0 = std::min(axes.x0, point.x);
      axes.x1 = std::max(axes.x1, point.x);
      axes.y0 = std::min(axes.y0, point.y);
      axes.y1 = std::max(axes.y1, point.y);
    }
  if (unigram_loss > 0) {
    axes.y0 = std::min(axes.y0, unigram_loss);
    axes.y1 = std::max(axes.y1, unigram_loss);
  }
  if (axes.x1 - axes.x0 < 1) axes.x1 = axes.x0 + 1;
  const double margin =
      std::max(0.05 * (axes.y1 - axes.y0), 1e-3 * std::max(1.0, std::abs(axes.y1)));
  axes.y0 -= margin;
  axes.y1 += margin;
  std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"Loss\">\n",
                                chart_width, Axes::height);
  out += grid(axes);
  if (unigram_loss > 0)
    out += fmt::format(
        "<line class=\"unigram\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n",
        axes.left, chart_width - axes.right, axes.py(unigram_loss));
  out += polyline(thinned(training), axes, "training");
  if (validation.size() > 1) out += polyline(thinned(validation), axes, "validation");
  for (const Point& point : thinned(validation))
    out += fmt::format(
        "<circle class=\"validation\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"><title>step "
        "{:.0f}: {:.4f}</title></circle>\n",
        axes.px(point.x), axes.py(point.y), point.x, point.y);
  out += "</svg>\n<p class=\"legend\">" + swatch("#4c8bd6", "training loss");
  if (!validation.empty()) out += swatch("#d9694f", "validation loss");
  if (unigram_loss > 0)
    out +=
        swatch("#8d99a8", fmt::format("unigram model of the text, {:.3f}", unigram_loss).c_str());
  return out + "</p>\n";
}

std::string timeline_chart(const Timeline& timeline, const ClusterSpec& cluster, Seconds length) {
  if (timeline.spans.empty()) return "<p>Nothing was recorded.</p>\n";
  if (!(length > 0)) length = timeline.makespan();
  if (!std::isfinite(length)) return "<p>The times are not finite.</p>\n";
  if (!(length > 0)) length = 1e-9;
  std::vector<std::string> lanes;
  for (const Span& span : timeline.spans)
    if (std::find(lanes.begin(), lanes.end(), span.lane) == lanes.end()) lanes.push_back(span.lane);
  std::sort(lanes.begin(), lanes.end(), lane_before);
  constexpr double left = 150;
  const double scale = (chart_width - left - 10) / length;
  std::map<std::string, std::pair<double, double>> places;  // top and height by lane
  double y = 4;
  std::string names;
  for (const std::string& lane : lanes) {
    const double height = lane.find('>') == std::string::npos ? 26 : 12;
    places[lane] = {y, height};
    names += fmt::format(
        "<text class=\"lane\" x=\"{}\" y=\"{:.1f}\">{}</text><rect class=\"idle\" "
        "x=\"{}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n",
        left - 8, y + height / 2 + 4, escape_html(lane_name(lane, cluster)), left, y,
        length * scale, height);
    y += height + 5;
  }
  std::string out =
      fmt::format("<svg viewBox=\"0 0 {} {:.0f}\" role=\"img\" aria-label=\"Timeline\">\n{}",
                  chart_width, y + 22, names);
  const std::size_t count = std::min(timeline.spans.size(), most_spans);
  for (std::size_t i = 0; i < count; ++i) {
    const Span& span = timeline.spans[i];
    const auto [top, height] = places[span.lane];
    out += span_rect(span, left + span.begin * scale, (span.end - span.begin) * scale, top, height);
  }
  const double step = round_step(length);
  for (double t = 0; t <= length * 1.0001; t += step)
    out += fmt::format(
        "<text class=\"mark\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
        left + t * scale, y + 14, t == 0 ? "0" : format_seconds(t));
  out += "</svg>\n";
  if (count < timeline.spans.size())
    out += fmt::format("<p>The first {} of {} spans.</p>\n", count, timeline.spans.size());
  return out;
}

std::string timeline_legend(const std::vector<const Timeline*>& timelines) {
  std::string out = "<p class=\"legend\">";
  for (const OpStyle& style : op_styles) {
    const bool seen =
        std::any_of(timelines.begin(), timelines.end(), [&](const Timeline* timeline) {
          return std::any_of(timeline->spans.begin(), timeline->spans.end(),
                             [&](const Span& span) { return span.action.op == style.op; });
        });
    if (seen) out += swatch(style.color, style.name);
  }
  return out + "</p>\n";
}

std::string memory_chart(const Plan& plan,
                         const ClusterSpec& cluster,
                         const std::vector<DeviceRow>& measured) {
  Bytes most = 1;
  for (std::size_t d = 0; d < cluster.devices.size(); ++d) {
    most = std::max(most, cluster.devices[d].memory);
    if (d < plan.memory.size()) most = std::max(most, plan.memory[d].total());
  }
  constexpr double left = 150;
  const double scale = (chart_width - left - 10) / static_cast<double>(most);
  std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"Memory\">\n",
                                chart_width, cluster.devices.size() * 46 + 6);
  for (std::size_t d = 0; d < cluster.devices.size(); ++d) {
    const DeviceSpec& device = cluster.devices[d];
    const double y = static_cast<double>(d) * 46 + 4;
    const MemoryPlan memory = d < plan.memory.size() ? plan.memory[d] : MemoryPlan{};
    out += fmt::format(
        "<text class=\"lane\" x=\"{}\" y=\"{}\">{}</text><rect class=\"cap\" x=\"{}\" "
        "y=\"{}\" width=\"{:.1f}\" height=\"24\"/>\n",
        left - 8, y + 16, escape_html(device.name), left, y,
        static_cast<double>(device.memory) * scale);
    double x = left;
    for (const Category& category : categories) {
      const Bytes bytes = memory.*category.bytes;
      const double width = static_cast<double>(bytes) * scale;
      if (bytes > 0)
        out += fmt::format(
            "<rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"24\" "
            "fill=\"{}\"><title>{}: {}</title></rect>\n",
            x, y, width, category.color, category.name, format_bytes(bytes));
      x += width;
    }
    std::string text = fmt::format("predicted {} of {}", format_bytes(memory.total()),
                                   format_bytes(device.memory));
    for (const DeviceRow& row : measured)
      if (row.device.index() == d) {
        const double mark = left + static_cast<double>(row.peak) * scale;
        out += fmt::format(
            "<line class=\"peak\" x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"{1}\" y2=\"{2}\"/>\n", mark,
            y - 3, y + 27);
        text += fmt::format(", measured {}", format_bytes(row.peak));
      }
    out += fmt::format("<text class=\"mark\" x=\"{}\" y=\"{}\">{}</text>\n", left, y + 37, text);
  }
  return out + "</svg>\n";
}

std::string memory_legend() {
  std::string out = "<p class=\"legend\">";
  for (const Category& category : categories) out += swatch(category.color, category.name);
  return out + swatch("#1d2733", "measured peak") + swatch("#e9edf2", "up to the cap") + "</p>\n";
}

}  // namespace troupe
