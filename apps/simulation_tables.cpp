#include "apps/simulation_tables.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/plan_tables.h"
#include "apps/time_table.h"
#include "planner/counted.h"
#include "planner/printable.h"

namespace troupe {
namespace {

/// "0-3", or "0, 4-5" for several stages; "-" for none.
std::string layers_of_device(const SimulationCase& one, std::size_t device) {
  std::string text;
  for (const StagePlan& stage : one.stages)
    if (stage.device.index() == device)
      text += (text.empty() ? "" : ", ") + layers_text(stage.layers);
  return text.empty() ? "-" : text;
}

std::string title_of(const SimulationCase& one) {
  return fmt::format("{}: schedule {}, {} of {}", one.source, one.schedule_name,
                     counted(one.shape.microbatch_count, "microbatch"),
                     counted(one.shape.microbatch_size, "sequence"));
}

}  // namespace

Table use_table(const SimulationCase& one, const SimulatedStep& step, bool all_reasons) {
  const TimeColumns times(step.use, all_reasons);
  std::vector<TableColumn> columns{{"device", "device", false}, {"layers", "layers", false}};
  for (TableColumn& column : times.titles()) columns.push_back(std::move(column));
  columns.push_back({"peak memory", "peak_bytes", true});
  columns.push_back({"cap", "cap_bytes", true});
  Table table(columns);
  for (std::size_t d = 0; d < step.use.size(); ++d) {
    const DeviceSpec& device = one.cluster.devices[d];
    const std::string layers = layers_of_device(one, d);
    std::vector<TableCell> row{{device.name, device.name}, {layers, layers}};
    for (TableCell& cell : times.cells(step.use[d])) row.push_back(std::move(cell));
    row.push_back({format_bytes(one.memory[d].total()), one.memory[d].total()});
    row.push_back({format_bytes(device.memory), device.memory});
    table.add(std::move(row));
  }
  return table;
}

Table comparison_table(const std::vector<SimulationCase>& cases,
                       const std::vector<SimulatedStep>& steps,
                       const std::vector<RefusedCase>& refused) {
  std::vector<TableColumn> columns({{"configuration", "source", false},
                                    {"schedule", "schedule", false},
                                    {"step", "step_seconds", true},
                                    {"against the first", "against_first", true},
                                    {"bubble", "bubble", true},
                                    {"exposed", "exposed_seconds", true},
                                    {"fullest device", "fullest_share", true},
                                    {"fits", "fits", false}});
  if (!refused.empty()) columns.push_back({"not played because", "refused", false});
  Table table(columns);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    double fullest = 0;
    for (std::size_t d = 0; d < cases[i].memory.size(); ++d)
      fullest = std::max(fullest, static_cast<double>(cases[i].memory[d].total()) /
                                      static_cast<double>(cases[i].cluster.devices[d].memory));
    const bool fits = shortfall_text(cases[i]).empty();
    const bool ended = steps[i].played.ended();
    const bool comparable = ended && steps.front().played.ended() && steps.front().seconds > 0;
    const double against = comparable ? steps[i].seconds / steps.front().seconds - 1 : 0;
    std::vector<TableCell> row{{cases[i].source, cases[i].source},
                               {cases[i].schedule_name, cases[i].schedule_name},
                               ended ? seconds_cell(steps[i].seconds) : TableCell{"hangs", nullptr},
                               comparable
                                   ? TableCell{fmt::format("{:+.1f} %", 100 * against), against}
                                   : TableCell{"-", nullptr},
                               share_cell(steps[i].bubble),
                               seconds_cell(steps[i].exposed),
                               share_cell(fullest),
                               {fits ? "yes" : "no", fits}};
    if (!refused.empty()) row.push_back({"", nullptr});
    table.add(std::move(row));
  }
  const TableCell none{"-", nullptr};
  for (const RefusedCase& one : refused) {
    const bool fits = one.why.code != ErrorCode::does_not_fit;
    table.add({{one.source, one.source},
               {one.schedule.empty() ? "-" : one.schedule, one.schedule},
               none,
               none,
               none,
               none,
               none,
               fits ? none : TableCell{"no", false},
               {one.why.text, one.why.text}});
  }
  return table;
}

std::string simulation_text(const SimulationCase& one,
                            const SimulatedStep& step,
                            const std::vector<std::string>& what_ifs) {
  std::string text = title_of(one) + "\n";
  for (const std::string& line : what_ifs) text += "what if: " + line + "\n";
  text += "\n";
  if (!step.played.ended()) {
    text += fmt::format("the step does not end; the last action ends at {} (undisturbed {})\n",
                        format_seconds(step.played.timeline.makespan()),
                        format_seconds(step.undisturbed));
    for (const std::string& line : step.hang) text += "  " + line + "\n";
    text += "  (an arrow leads from an action to what it waits for)\n";
  } else {
    text +=
        fmt::format("step {}, bubble {:.1f} %, exposed communication {} ({:.1f} %)\n",
                    format_seconds(step.seconds), 100 * step.bubble, format_seconds(step.exposed),
                    100 * step.exposed / std::max(step.seconds, 1e-300));
    if (!what_ifs.empty())
      text += fmt::format("undisturbed {} ({:+.1f} %)\n", format_seconds(step.undisturbed),
                          100 * (step.seconds / std::max(step.undisturbed, 1e-300) - 1));
  }
  text += "\n" + use_table(one, step, false).to_text();
  for (const std::string& note : one.notes) text += "note: " + note + "\n";
  return text;
}

nlohmann::ordered_json simulation_json(const SimulationCase& one,
                                       const SimulatedStep& step,
                                       const std::vector<std::string>& what_ifs) {
  nlohmann::ordered_json out;
  out["source"] = one.source;
  out["schedule"] = one.schedule_name;
  out["microbatches"] = one.shape.microbatch_count;
  out["what_if"] = what_ifs;
  out["ends"] = step.played.ended();
  if (step.played.ended()) out["step_seconds"] = step.seconds;
  out["undisturbed_step_seconds"] = step.undisturbed;
  out["updates_played"] = one.updates;
  out["bubble"] = step.bubble;
  out["exposed_seconds"] = step.exposed;
  out["fits"] = shortfall_text(one).empty();
  out["devices"] = use_table(one, step, true).to_json();
  out["hang"] = step.hang;
  out["notes"] = one.notes;
  return out;
}

}  // namespace troupe
