#include "apps/time_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace troupe {
namespace {

std::string key_of(IdleReason reason) {
  std::string key(to_string(reason));
  std::replace(key.begin(), key.end(), ' ', '_');
  return "idle_" + key + "_seconds";
}

}  // namespace

TableCell seconds_cell(Seconds seconds) {
  return {seconds > 0 ? format_seconds(seconds) : "-", seconds};
}

TimeColumns::TimeColumns(const std::vector<DeviceUse>& use, bool all_reasons) {
  for (std::size_t r = 0; r < idle_reason_count; ++r) {
    const auto reason = static_cast<IdleReason>(r);
    if (all_reasons || std::any_of(use.begin(), use.end(),
                                   [&](const DeviceUse& one) { return one.idle_for(reason) > 0; }))
      reasons_.push_back(reason);
  }
}

std::vector<TableColumn> TimeColumns::titles() const {
  std::vector<TableColumn> columns{{"busy", "busy_seconds", true}};
  for (const IdleReason reason : reasons_)
    columns.push_back({std::string(to_string(reason)), key_of(reason), true});
  columns.push_back({"utilisation", "utilisation", true});
  columns.push_back({"exposed", "exposed_seconds", true});
  return columns;
}

std::vector<TableCell> TimeColumns::cells(const DeviceUse& use) const {
  std::vector<TableCell> cells{seconds_cell(use.busy)};
  for (const IdleReason reason : reasons_) cells.push_back(seconds_cell(use.idle_for(reason)));
  const Seconds length = use.busy + use.idle_sum();
  cells.push_back(share_cell(length > 0 ? use.busy / length : 0));
  cells.push_back(seconds_cell(use.exposed));
  return cells;
}

Table time_table(const ClusterSpec& cluster, const std::vector<DeviceUse>& use) {
  const TimeColumns times(use, false);
  auto columns = times.titles();
  columns.insert(columns.begin(), {"device", "device", false});
  Table table(columns);
  for (std::size_t d = 0; d < use.size(); ++d) {
    auto row = times.cells(use[d]);
    row.insert(row.begin(), {cluster.devices[d].name, cluster.devices[d].name});
    table.add(std::move(row));
  }
  return table;
}

}  // namespace troupe
