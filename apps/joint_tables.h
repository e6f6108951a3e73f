/// A joint plan (planner/joint_plan.h) as `troupe plan --strategy auto` prints it.
#pragma once

#include <string>

#include "apps/table.h"
#include "planner/joint_plan.h"

namespace troupe {

/// One row a stage: replica, device, layers, times of a microbatch and of the update, what waits
/// for moves, and what is chosen beside the device's memory.
Table joint_stage_table(const JointPlan& plan, const ClusterSpec& cluster);
/// One row a device: bytes by category, its cap, and what lies in host memory and on disk.
Table joint_memory_table(const JointPlan& plan, const ClusterSpec& cluster);
std::string joint_text(const JointPlan& plan, const ClusterSpec& cluster);
nlohmann::json joint_json(const JointPlan& plan, const ClusterSpec& cluster);

}  // namespace troupe
