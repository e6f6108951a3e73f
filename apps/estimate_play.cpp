#include "apps/estimate_play.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "apps/estimate_table.h"
#include "apps/html.h"
#include "apps/layout_case.h"
#include "apps/simulation_tables.h"
#include "apps/small_file.h"
#include "apps/timeline_svg.h"

namespace troupe {
namespace {

bool asks(const WhatIfArguments& arguments) {
  return !arguments.slow.empty() || !arguments.links.empty() || !arguments.stops.empty() ||
         arguments.jitter != 0;
}

std::string title_of(const Question& question, const PlacedLayout& placed) {
  const std::string layout = layout_text(placed.priced.layout);
  return question.groups.size() == 1
             ? layout
             : fmt::format("{} x {}: {}", placed.group.devices, placed.group.name, layout);
}

}  // namespace

bool PlayArguments::wanted() const {
  return play || text || !svg.empty() || !trace.empty() || !html.empty() ||
         (what_if != nullptr && asks(*what_if));
}

std::shared_ptr<PlayArguments> add_play_arguments(CLI::App& command) {
  auto arguments = std::make_shared<PlayArguments>();
  command.add_flag("--play", arguments->play,
                   "Play the fastest layout's step: what each stage does and waits for");
  command.add_flag("--text", arguments->text, "Play it, and draw the timeline as text");
  command.add_option("--width", arguments->width, "Columns of --text (100)")
      ->check(CLI::Range(10, 10000));
  command.add_option("--svg", arguments->svg, "Write its timeline as a drawing")->type_name("FILE");
  command
      .add_option("--trace", arguments->trace, "Write its timeline as a Chrome trace (Perfetto)")
      ->type_name("FILE");
  command
      .add_option("--html", arguments->html,
                  "Write a page: the layouts that are shown, played side by side")
      ->type_name("FILE");
  arguments->what_if = add_what_if_arguments(command);
  return arguments;
}

Result<PlayedLayouts> play_layouts(const Question& question,
                                   const std::vector<PlacedLayout>& layouts,
                                   std::size_t needed,
                                   const PlayArguments& arguments) {
  PlayedLayouts out;
  if (asks(*arguments.what_if) && question.groups.size() > 1)
    return Error{ErrorCode::invalid_input,
                 "--slow, --link, --stop and --jitter go with one --devices"};
  if (!arguments.svg.empty() && needed > 1)
    return Error{ErrorCode::invalid_input,
                 "--svg draws one layout, and unlike devices have one each; --html and --trace "
                 "hold several"};
  for (const PlacedLayout& placed : layouts) {
    PagePlan plan{title_of(question, placed), {}, {}, {}};
    auto one = layout_case(question.run, placed.group, question.framework, placed.priced);
    if (!one && out.plans.size() < needed) return one.error();
    if (!one) {
      plan.refused = one.error().text;
      out.plans.push_back(std::move(plan));
      out.agreement.emplace_back();
      continue;
    }
    const bool first = out.plans.empty();
    // Stages have other names and numbers under every layout: a what-if is the first one's.
    const auto what_if =
        first ? read_what_if(*arguments.what_if, one->cluster) : Result<WhatIf>{WhatIf{}};
    if (!what_if) return what_if.error();
    auto step = simulate_case(*one, *what_if);
    if (!step) return step.error();
    if (first) out.what_ifs = what_if_lines(*what_if, one->cluster);
    out.agreement.push_back(against_closed_form(question.run, placed.priced, step->undisturbed));
    plan.plan = std::move(*one);
    plan.step = std::move(*step);
    out.plans.push_back(std::move(plan));
  }
  return out;
}

Status write_drawings(const PlayArguments& arguments,
                      const Question& question,
                      const PlayedLayouts& played,
                      std::size_t needed,
                      const Table& table) {
  std::vector<std::pair<std::string, std::string>> files;
  if (!arguments.trace.empty()) {
    std::vector<std::pair<std::string, Timeline>> timelines;
    std::vector<std::string> names;
    for (std::size_t i = 0; i < needed; ++i) {
      const PagePlan& one = played.plans[i];
      timelines.emplace_back(one.title, one.step.played.timeline);
      if (one.plan.cluster.devices.size() > names.size()) names = device_names(one.plan.cluster);
    }
    files.emplace_back(arguments.trace, to_chrome_trace(timelines, names));
  }
  const PagePlan& first = played.plans.front();
  if (!arguments.svg.empty()) {
    if (!(first.step.played.timeline.makespan() > 0))
      return Error{ErrorCode::invalid_input, "--svg: no action ended, so there is nothing to draw"};
    files.emplace_back(arguments.svg,
                       timeline_svg(first.title, first.step.played.timeline, first.plan.cluster));
  }
  if (arguments.html.empty()) return write_files(files);
  std::string above = section("Layouts", html_table(table));
  std::string agreement;
  for (std::size_t i = 0; i < played.plans.size(); ++i)
    if (!played.agreement[i].empty())
      agreement += fmt::format("<li>{}: {}</li>\n", escape_html(played.plans[i].title),
                               escape_html(played.agreement[i]));
  above += section("Played and priced", "<ul>\n" + agreement + "</ul>\n");
  files.emplace_back(arguments.html,
                     side_by_side_page(question.model, heading(question), above, played.plans));
  return write_files(files);
}

std::string played_text(const PlayArguments& arguments,
                        const PlayedLayouts& played,
                        std::size_t needed) {
  std::string text;
  for (std::size_t i = 0; i < needed; ++i) {
    const PagePlan& one = played.plans[i];
    text += "\n" + simulation_text(one.plan, one.step,
                                   i == 0 ? played.what_ifs : std::vector<std::string>{});
    text += "note: " + played.agreement[i] + "\n";
    if (arguments.text)
      text += "\n" + timeline_text(one.step.played.timeline, device_names(one.plan.cluster),
                                   arguments.width);
  }
  return text;
}

nlohmann::ordered_json played_json(const PlayedLayouts& played, std::size_t index) {
  const PagePlan& one = played.plans[index];
  auto out = simulation_json(one.plan, one.step,
                             index == 0 ? played.what_ifs : std::vector<std::string>{});
  out["against_closed_form"] = played.agreement[index];
  return out;
}

}  // namespace troupe
