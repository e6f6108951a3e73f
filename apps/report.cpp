#include "apps/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/html.h"
#include "apps/plan_tables.h"
#include "apps/report_charts.h"
#include "apps/time_table.h"
#include "apps/timeline_svg.h"
#include "planner/counted.h"
#include "planner/idle.h"

namespace troupe {
namespace {

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

std::string timelines(const ReportInput& input) {
  const Seconds length = std::max(input.plan.timeline.makespan(), input.played.makespan());
  std::string out =
      "<h3>Planned</h3>\n" + timeline_chart(input.plan.timeline, input.cluster, length);
  if (!input.played.spans.empty())
    out += fmt::format("<h3>Played, step {}</h3>\n", input.played_step) +
           timeline_chart(input.played, input.cluster, length);
  out += timeline_legend({&input.plan.timeline, &input.played});
  const auto times = [&](const char* title, const Timeline& timeline) {
    if (!timeline.spans.empty())
      out +=
          title + html_table(time_table(input.cluster, device_use(input.plan.schedule, timeline)));
  };
  times("<h3>Where the planned time goes</h3>\n", input.plan.timeline);
  times("<h3>Where the played time went</h3>\n", input.played);
  return out;
}

}  // namespace

std::string report_html(const ReportInput& input) {
  const MeasuredRun measured = measure_steps(input.steps);
  std::string out;
  out += fmt::format(
      "<p class=\"sub\">{} parameters in {} layers, {} tokens a step in {}, {}, schedule {}, "
      "{} of {} used</p>\n",
      parameter_count(input.plan.model), layer_count(input.plan.model),
      std::uint64_t{input.plan.shape.batch_size} * input.plan.shape.sequence_length,
      counted(input.plan.shape.microbatch_count, "microbatch"), to_string(input.plan.shape.compute),
      to_string(input.plan.schedule_kind), input.cluster.devices.size() - input.plan.unused.size(),
      counted(input.cluster.devices.size(), "device"));
  out += tiles(input, measured) + drift_warnings(input);
  std::vector<StepRow> all = input.earlier;
  all.insert(all.end(), input.steps.begin(), input.steps.end());
  out += section("Loss", loss_chart(all, input.evaluations, input.unigram_loss));
  out += section("Plan", html_table(stage_table(input.plan, input.cluster)) + "<h3>Memory</h3>\n" +
                             html_table(device_table(input.plan, input.cluster, measured)));
  out += section("One step", timelines(input));
  out += section("Memory", memory_chart(input.plan.memory, input.cluster, measured.devices) +
                               memory_legend(!measured.devices.empty()));
  out += section("Events", events(input));
  out += fmt::format(
      "<section><details><summary>Why this plan</summary><pre>{}</pre></details></section>\n",
      escape_html(reasons_text(input.plan)));
  out += fmt::format(
      "<section><details><summary>Configuration</summary><pre>{}</pre></details></section>\n",
      escape_html(input.config));
  return html_page(input.spec.name, out);
}

}  // namespace troupe
