#include "apps/report_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "apps/html.h"

namespace troupe {
namespace {

constexpr std::size_t most_points = 1200;

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
  for (const double y : marks_of(axes.y0, axes.y1, y_step))
    out += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text class=\"mark\" x=\"{3:.1f}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.4g}</text>\n",
        axes.left, chart_width - axes.right, axes.py(y), axes.left - 8, axes.py(y) + 4, y);
  const double x_step = std::max(1.0, round_step(axes.x1 - axes.x0));
  for (const double x : marks_of(axes.x0, axes.x1, x_step))
    out += fmt::format(
        "<text class=\"mark\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.0f}</text>\n",
        axes.px(x), axes.height - 10, x);
  return out;
}

}  // namespace

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

std::string memory_chart(const std::vector<MemoryPlan>& memory_by_device,
                         const ClusterSpec& cluster,
                         const std::vector<DeviceRow>& measured) {
  Bytes most = 1;
  for (std::size_t d = 0; d < cluster.devices.size(); ++d) {
    most = std::max(most, cluster.devices[d].memory);
    if (d < memory_by_device.size()) most = std::max(most, memory_by_device[d].total());
  }
  constexpr double left = 150;
  const double scale = (chart_width - left - 10) / static_cast<double>(most);
  std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"Memory\">\n",
                                chart_width, cluster.devices.size() * 46 + 6);
  for (std::size_t d = 0; d < cluster.devices.size(); ++d) {
    const DeviceSpec& device = cluster.devices[d];
    const double y = static_cast<double>(d) * 46 + 4;
    const MemoryPlan memory = d < memory_by_device.size() ? memory_by_device[d] : MemoryPlan{};
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

std::string memory_legend(bool measured) {
  std::string out = "<p class=\"legend\">";
  for (const Category& category : categories) out += swatch(category.color, category.name);
  if (measured) out += swatch("#1d2733", "measured peak");
  return out + swatch("#e9edf2", "up to the cap") + "</p>\n";
}

}  // namespace troupe
