/// Where each device's time goes, as columns of a table.
#pragma once

#include <vector>

#include "apps/table.h"
#include "planner/cluster.h"
#include "planner/idle.h"

namespace troupe {

/// Busy, idle by reason, utilisation, exposed communication.
class TimeColumns {
 public:
  /// `all_reasons`: also those that no device has.
  TimeColumns(const std::vector<DeviceUse>& use, bool all_reasons);
  std::vector<TableColumn> titles() const;
  std::vector<TableCell> cells(const DeviceUse& use) const;

 private:
  std::vector<IdleReason> reasons_;
};

/// One row per device.
Table time_table(const ClusterSpec& cluster, const std::vector<DeviceUse>& use);

/// "-" for nothing.
TableCell seconds_cell(Seconds seconds);

}  // namespace troupe
