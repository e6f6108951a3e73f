#include "apps/plan_tables.h"

#include <fmt/format.h>

#include <algorithm>

#include "planner/printable.h"

namespace troupe {
namespace {

const DeviceRow* row_of(const MeasuredRun& measured, std::size_t device) {
  for (const DeviceRow& row : measured.devices)
    if (row.device.index() == device) return &row;
  return nullptr;
}

}  // namespace

TableCell bytes_cell(Bytes bytes) {
  return {bytes == 0 ? "-" : format_bytes(bytes), bytes};
}

MeasuredRun measure_steps(const std::vector<StepRow>& steps) {
  MeasuredRun out;
  // The first step touches its memory for the first time; it is left out where there are others.
  std::vector<const StepRow*> rows;
  rows.reserve(steps.size());
  for (const StepRow& step : steps) rows.push_back(&step);
  if (rows.size() > 1) rows.erase(rows.begin());
  if (rows.empty()) return out;
  const auto middle = rows.begin() + static_cast<std::ptrdiff_t>(rows.size() / 2);
  std::nth_element(rows.begin(), middle, rows.end(),
                   [](const StepRow* a, const StepRow* b) { return a->seconds < b->seconds; });
  out.step = (*middle)->seconds;
  out.devices = (*middle)->devices;
  for (const StepRow& step : steps)
    for (const DeviceRow& device : step.devices)
      for (DeviceRow& known : out.devices)
        if (known.device == device.device) known.peak = std::max(known.peak, device.peak);
  return out;
}

Table stage_table(const Plan& plan, const ClusterSpec& cluster) {
  std::vector<TableColumn> columns{{"stage", "stage", true},
                                   {"layers", "layers", false},
                                   {"count", "layer_count", true},
                                   {"device", "device", false},
                                   {"in flight", "in_flight", true}};
  const bool defers = std::any_of(plan.deferred.begin(), plan.deferred.end(),
                                  [](std::uint32_t count) { return count > 0; });
  if (defers) columns.push_back({"deferred", "deferred", true});
  const bool again = std::any_of(plan.stages.begin(), plan.stages.end(),
                                 [](const StagePlan& stage) { return !stage.recompute.none(); });
  if (again) columns.push_back({"computed again", "recompute", false});
  Table table(columns);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const StagePlan& stage = plan.stages[s];
    const std::string layers = layers_text(stage.layers);
    const std::string& device = cluster.devices.at(stage.device.index()).name;
    const std::uint32_t flight = s < plan.in_flight.size() ? plan.in_flight[s] : 0;
    std::vector<TableCell> row{{fmt::format("{}", s), s},
                               {layers, layers},
                               {fmt::format("{}", stage.layers.size()), stage.layers.size()},
                               {device, device},
                               {fmt::format("{}", flight), flight}};
    if (defers) row.push_back({fmt::format("{}", plan.deferred[s]), plan.deferred[s]});
    if (again)
      row.push_back({to_text(stage.recompute),
                     {{"full", stage.recompute.full}, {"selective", stage.recompute.selective}}});
    table.add(std::move(row));
  }
  return table;
}

Table device_table(const Plan& plan, const ClusterSpec& cluster, const MeasuredRun& measured) {
  std::vector<TableColumn> columns{{"device", "device", false},
                                   {"weights", "weights_bytes", true},
                                   {"gradients", "gradients_bytes", true},
                                   {"optimizer", "optimizer_bytes", true},
                                   {"activations", "activations_bytes", true},
                                   {"workspace", "workspace_bytes", true},
                                   {"transfer", "transfer_bytes", true},
                                   {"predicted peak", "predicted_peak_bytes", true},
                                   {"cap", "cap_bytes", true},
                                   {"headroom", "headroom_bytes", true}};
  const bool with_measured = !measured.devices.empty();
  if (with_measured)
    columns.insert(columns.begin() + 8, {"measured peak", "measured_peak_bytes", true});
  Table table(columns);
  for (std::size_t d = 0; d < cluster.devices.size(); ++d) {
    const DeviceSpec& device = cluster.devices[d];
    const MemoryPlan memory = d < plan.memory.size() ? plan.memory[d] : MemoryPlan{};
    const Bytes total = memory.total();
    const Bytes room = device.memory > total ? device.memory - total : 0;
    std::vector<TableCell> row{{device.name, device.name},
                               bytes_cell(memory.weights),
                               bytes_cell(memory.gradients),
                               bytes_cell(memory.optimizer),
                               bytes_cell(memory.activations),
                               bytes_cell(memory.workspace),
                               bytes_cell(memory.transfer),
                               bytes_cell(total),
                               {format_bytes(device.memory), device.memory},
                               {format_bytes(room), room}};
    if (with_measured) {
      const DeviceRow* played = row_of(measured, d);
      row.insert(row.begin() + 8,
                 played == nullptr ? TableCell{"-", nullptr} : bytes_cell(played->peak));
    }
    table.add(std::move(row));
  }
  return table;
}

std::string reasons_text(const Plan& plan) {
  std::string text;
  for (const PlanNote& note : plan.notes) text += to_text(note) + "\n";
  return text + "\n" +
         "in flight    microbatches whose activations a stage keeps at once\n"
         "deferred     those whose weight gradients wait for a gap (schedule zb-h1)\n"
         "workspace    what single ops need while they run\n"
         "transfer     buffers for tensors that come from other stages or go there\n"
         "headroom     the cap less the predicted peak\n";
}

}  // namespace troupe
