#include "tests/bench/published/architecture_runs.h"

#include "tests/support/published_models.h"

namespace troupe::published {

std::optional<Architecture> find_model(const std::string& name) {
  static const Table table(TROUPE_SOURCE_DIR "/tests/data", "models");
  for (const Row& row : table.rows())
    if (row.text("model") == name) return architecture_from(row);
  return std::nullopt;
}

Layout checked(const Row& row, const ArchitectureRun& run, const Layout& layout) {
  const auto faults = layout_faults(run, layout);
  if (!faults.empty()) throw BadTable(row.place() + ": " + faults.front());
  return layout;
}

Interconnect h100_network() {
  Interconnect out;
  out.intra = 360e9;
  out.node = 400e9;
  return out;
}

}  // namespace troupe::published
