#include "apps/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace troupe {
namespace {

constexpr const char* page_style = R"css(
:root { color-scheme: light; }
body { margin: 0; background: #f5f7f9; color: #1d2733; font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 0 0 12px; }
h3 { font-size: 14px; margin: 18px 0 6px; color: #4a5766; }
main:has(.plans) { max-width: 1640px; }
.plans { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(680px, 100%), 1fr)); gap: 18px; }
.plans section { margin: 0; }
.sub { color: #5d6b7a; margin: 0 0 20px; }
section { background: #fff; border: 1px solid #e1e6ec; border-radius: 8px; padding: 18px 20px;
  margin: 0 0 18px; overflow-x: auto; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 0 0 18px; }
.tile { background: #fff; border: 1px solid #e1e6ec; border-radius: 8px; padding: 12px 16px; }
.tile b { display: block; font-size: 21px; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile span { color: #5d6b7a; font-size: 13px; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: #5d6b7a; }
th, td { padding: 5px 14px 5px 0; border-bottom: 1px solid #edf0f4; white-space: nowrap; }
.r { text-align: right; }
svg { width: 100%; height: auto; display: block; }
svg text { font: 11.5px system-ui, sans-serif; fill: #5d6b7a; }
svg text.lane { text-anchor: end; fill: #1d2733; font-size: 12.5px; }
svg text.op { text-anchor: middle; fill: #fff; font-size: 10.5px; }
.grid { stroke: #e9edf2; }
.training { fill: none; stroke: #4c8bd6; stroke-width: 1.6; }
polyline.validation { fill: none; stroke: #d9694f; stroke-width: 1.6; }
circle.validation { fill: #d9694f; }
.unigram { stroke: #8d99a8; stroke-width: 1.4; stroke-dasharray: 6 5; }
.idle { fill: #f1f4f7; }
.cap { fill: #e9edf2; }
.peak { stroke: #1d2733; stroke-width: 2.4; }
.legend { margin: 8px 0 0; color: #5d6b7a; font-size: 13px; }
.key { margin-right: 18px; white-space: nowrap; }
.key i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 6px;
  vertical-align: -1px; }
.warning { background: #fdf3e7; border: 1px solid #eccfa6; border-radius: 8px; margin: 0 0 18px;
  padding: 10px 16px; }
ul { margin: 0; padding-left: 18px; }
pre { font: 12.5px/1.45 ui-monospace, monospace; margin: 10px 0 0; white-space: pre-wrap; }
code { font: 13px ui-monospace, monospace; background: #f1f4f7; padding: 1px 5px; border-radius: 3px; }
summary { cursor: pointer; font-weight: 600; }
)css";

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

std::string html_page(const std::string& title, const std::string& body) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{0} - Troupe</title>\n<style>{1}</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n"
      "{2}</main>\n</body>\n</html>\n",
      escape_html(title), page_style, body);
}

std::string section(const std::string& title, const std::string& body) {
  return fmt::format("<section><h2>{}</h2>\n{}</section>\n", title, body);
}

std::string tile(const std::string& value, const std::string& label) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", escape_html(value),
                     escape_html(label));
}

std::string html_table(const Table& table) {
  std::string out = "<table><tr>";
  for (const TableColumn& column : table.columns())
    out +=
        fmt::format("<th{}>{}</th>", column.right ? " class=\"r\"" : "", escape_html(column.title));
  out += "</tr>\n";
  for (const auto& row : table.rows()) {
    out += "<tr>";
    for (std::size_t c = 0; c < row.size(); ++c)
      out += fmt::format("<td{}>{}</td>", table.columns()[c].right ? " class=\"r\"" : "",
                         escape_html(row[c].text));
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

std::string swatch(const char* color, const char* name) {
  return fmt::format("<span class=\"key\"><i style=\"background:{}\"></i>{}</span>", color, name);
}

double round_step(double range) {
  const double raw = range / 5;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= raw * 0.999) return factor * power;
  return 10 * power;
}

std::vector<double> marks_of(double from, double to, double step) {
  std::vector<double> marks;
  if (!(step > 0)) return marks;
  const double first = std::ceil(from / step);
  const double most = std::min(to / step - first, 999.0);
  for (int i = 0; i <= most; ++i) marks.push_back((first + i) * step);
  return marks;
}

}  // namespace troupe
