/// Rows of published training runs of any architecture as values of the planner.
#pragma once

#include <optional>
#include <string>

#include "planner/architecture_estimate.h"
#include "tests/bench/published/training_runs.h"

namespace troupe::published {

/// A model of tests/data/models.csv; nothing where the name is not in it.
std::optional<Architecture> find_model(const std::string& name);

/// The layout, where it can run; else throws BadTable with the row's place and the reason.
Layout checked(const Row& row, const ArchitectureRun& run, const Layout& layout);

/// Nodes of 8 H100-SXM: NVLink 4, 450 GB/s a direction, of which NCCL's rings carry 360;
/// 400 Gb/s a GPU between nodes.
Interconnect h100_network();

}  // namespace troupe::published
