/// What `troupe simulate` prints, as tables.
#pragma once

#include <string>
#include <vector>

#include "apps/simulation.h"
#include "apps/table.h"

namespace troupe {

/// One row per device: layers, busy, idle by reason, utilisation, exposed communication, memory.
/// `all_reasons`: also those that no device has.
Table use_table(const SimulationCase& one, const SimulatedStep& step, bool all_reasons);

/// One row per case: step, against the first, bubble, exposed communication, memory; then one per
/// refused case, with why.
Table comparison_table(const std::vector<SimulationCase>& cases,
                       const std::vector<SimulatedStep>& steps,
                       const std::vector<RefusedCase>& refused = {});

/// Heading, figures, table and notes of one case.
std::string simulation_text(const SimulationCase& one,
                            const SimulatedStep& step,
                            const std::vector<std::string>& what_ifs);

nlohmann::ordered_json simulation_json(const SimulationCase& one,
                                       const SimulatedStep& step,
                                       const std::vector<std::string>& what_ifs);

}  // namespace troupe
