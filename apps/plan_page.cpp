#include "apps/plan_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <tuple>

#include "apps/html.h"
#include "apps/report_charts.h"
#include "apps/simulation_tables.h"
#include "apps/timeline_svg.h"
#include "planner/counted.h"

namespace troupe {
namespace {

PagePlan played(std::string title, Result<SimulationCase> one) {
  PagePlan plan{std::move(title), {}, {}, {}};
  if (!one) {
    plan.refused = one.error().text;
    return plan;
  }
  auto step = simulate_case(*one, {});
  EXPECTS(step.ok());  // without what-ifs nothing can be refused
  plan.plan = std::move(*one);
  plan.step = std::move(*step);
  return plan;
}

Table comparison(const std::vector<PagePlan>& plans) {
  std::vector<SimulationCase> cases;
  std::vector<SimulatedStep> steps;
  for (const PagePlan& plan : plans) {
    if (!plan.refused.empty()) continue;
    cases.push_back(plan.plan);
    cases.back().source = plan.title;
    steps.push_back(plan.step);
  }
  return comparison_table(cases, steps);
}

std::string plan_section(const PagePlan& plan, Seconds length) {
  if (!plan.refused.empty())
    return section(escape_html(plan.title), fmt::format("<p>{}</p>\n", escape_html(plan.refused)));
  return section(
      fmt::format("{}: {}", escape_html(plan.title), format_seconds(plan.step.seconds)),
      "<h3>One step</h3>\n" + timeline_chart(plan.step.played.timeline, plan.plan.cluster, length) +
          timeline_legend({&plan.step.played.timeline}) + "<h3>Memory</h3>\n" +
          memory_chart(plan.plan.memory, plan.plan.cluster, {}) + memory_legend(false) +
          "<h3>Where the time goes</h3>\n" + html_table(use_table(plan.plan, plan.step, false)));
}

}  // namespace

std::vector<PagePlan> plans_side_by_side(const SimulationSource& source) {
  std::vector<PagePlan> plans{played("the plan", source.schedule(""))};
  const std::string own = plans.front().plan.schedule_name;
  if (auto second = source.runner_up()) plans.push_back(played("runner-up", std::move(*second)));
  for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::gpipe,
                                  ScheduleKind::interleaved, ScheduleKind::zero_bubble_h1}) {
    const std::string name(to_string(kind));
    if (name != own) plans.push_back(played("schedule " + name, source.schedule(name)));
  }
  std::stable_sort(plans.begin() + 1, plans.end(), [](const PagePlan& a, const PagePlan& b) {
    return std::tuple(!a.refused.empty(), a.step.seconds) <
           std::tuple(!b.refused.empty(), b.step.seconds);
  });
  return plans;
}

std::string side_by_side_page(const std::string& title,
                              const std::string& subtitle,
                              const std::string& above,
                              const std::vector<PagePlan>& plans) {
  EXPECTS(!plans.empty());
  Seconds length = 0;
  for (const PagePlan& plan : plans)
    length = std::max(length, plan.step.played.timeline.makespan());
  std::string body;
  std::istringstream lines(subtitle);
  for (std::string line; std::getline(lines, line);)
    body += fmt::format("<p class=\"sub\">{}</p>\n", escape_html(line));
  body += above + section("Plans", html_table(comparison(plans)));
  body += "<div class=\"plans\">\n";
  for (const PagePlan& plan : plans) body += plan_section(plan, length);
  return html_page(title + ": plans", body + "</div>\n");
}

std::string plan_page(const RunSpec& spec,
                      const Architecture& model,
                      const std::string& note,
                      const std::vector<PagePlan>& plans) {
  return side_by_side_page(
      spec.name,
      fmt::format("{} parameters in {} layers, {} tokens a step in {}, {}; all "
                  "timelines have one scale",
                  parameter_count(model), layer_count(spec.model),
                  std::uint64_t{spec.shape.batch_size} * spec.shape.sequence_length,
                  counted(spec.shape.microbatch_count, "microbatch"),
                  to_string(spec.shape.compute)) +
          (note.empty() ? "" : "\n" + note),
      "", plans);
}

}  // namespace troupe
