#include "apps/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/plan_tables.h"
#include "apps/report_charts.h"

namespace troupe {
namespace {

constexpr const char* style = R"css(
:root { color-scheme: light; }
body { margin: 0; background: #f5f7f9; color: #1d2733; font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 0 0 12px; }
h3 { font-size: 14px; margin: 18px 0 6px; color: #4a5766; }
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

std::string tiles(const ReportInput& input, const MeasuredRun& measured) {
  std::string out = "<div class=\"tiles\">\n";
  const std::uint64_t done = input.steps.empty() ? 0 : input.steps.back().step;
  out += tile(fmt::format("{} of {}", done, input.spec.steps), "steps");
  if (!input.steps.empty())
    out += tile(fmt::format("{:.4f}", input.steps.back().loss()), "last training loss");
  if (!input.evaluations.empty())
    out += tile(fmt::format("{:.4f}", input.evaluations.back().loss),
                input.unigram_loss > 0
                    ? fmt::format("validation loss; unigram model {:.4f}", input.unigram_loss)
                    : std::string("validation loss"));
  if (measured.step > 0) {
    const double predicted = input.plan.predicted_step;
    out += tile(format_seconds(measured.step),
                fmt::format("per step; predicted {} ({:+.1f} %)", format_seconds(predicted),
                            (predicted / measured.step - 1) * 100));
    out +=
        tile(fmt::format("{:.0f}", static_cast<double>(input.steps.back().tokens) / measured.step),
             "tokens per second");
  }
  return out + "</div>\n";
}

/// What drifted from the plan, where it is seen first.
std::string drift_warnings(const ReportInput& input) {
  std::string out;
  for (const RunEvent& event : input.events)
    if (event.kind == "drift")
      out += fmt::format("<p class=\"warning\">After step {}: {}</p>\n", event.step,
                         escape_html(event.text));
  return out;
}

std::string events(const ReportInput& input) {
  if (input.events.empty()) return "<p>None.</p>\n";
  std::string out = "<ul>\n";
  for (const RunEvent& event : input.events)
    out += fmt::format("<li><code>{}</code> {}</li>\n", escape_html(event.kind),
                       escape_html(event.text));
  return out + "</ul>\n";
}

std::string section(const std::string& title, const std::string& body) {
  return fmt::format("<section><h2>{}</h2>\n{}</section>\n", title, body);
}

std::string timelines(const ReportInput& input) {
  const Seconds length = std::max(input.plan.timeline.makespan(), input.played.makespan());
  std::string out =
      "<h3>Planned</h3>\n" + timeline_chart(input.plan.timeline, input.cluster, length);
  if (!input.played.spans.empty())
    out += fmt::format("<h3>Played, step {}</h3>\n", input.played_step) +
           timeline_chart(input.played, input.cluster, length);
  return out + timeline_legend({&input.plan.timeline, &input.played});
}

}  // namespace

std::string report_html(const ReportInput& input) {
  const MeasuredRun measured = measure_steps(input.steps);
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{0} - Troupe</title>\n<style>{1}</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n",
      escape_html(input.spec.name), style);
  out += fmt::format(
      "<p class=\"sub\">{} parameters in {} layers, {} tokens a step in {} microbatches, {}, "
      "schedule "
      "{}, {} of {} devices used</p>\n",
      parameter_count(input.plan.model), layer_count(input.plan.model),
      std::uint64_t{input.plan.shape.batch_size} * input.plan.shape.sequence_length,
      input.plan.shape.microbatch_count, to_string(input.plan.shape.compute),
      to_string(input.plan.schedule_kind), input.cluster.devices.size() - input.plan.unused.size(),
      input.cluster.devices.size());
  out += tiles(input, measured) + drift_warnings(input);
  std::vector<StepRow> all = input.earlier;
  all.insert(all.end(), input.steps.begin(), input.steps.end());
  out += section("Loss", loss_chart(all, input.evaluations, input.unigram_loss));
  out += section("Plan", html_table(stage_table(input.plan, input.cluster)) + "<h3>Memory</h3>\n" +
                             html_table(device_table(input.plan, input.cluster, measured)));
  out += section("One step", timelines(input));
  out += section("Memory",
                 memory_chart(input.plan, input.cluster, measured.devices) + memory_legend());
  out += section("Events", events(input));
  out += fmt::format(
      "<section><details><summary>Why this plan</summary><pre>{}</pre></details></section>\n",
      escape_html(reasons_text(input.plan)));
  out += fmt::format(
      "<section><details><summary>Configuration</summary><pre>{}</pre></details></section>\n",
      escape_html(input.config));
  return out + "</main>\n</body>\n</html>\n";
}

}  // namespace troupe
