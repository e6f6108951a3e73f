/// Models of tests/data/models.csv by their name.
#pragma once

#include <string>

#include "tests/support/model_rows.h"

namespace troupe::published {

/// The row of this name in FOLDER/models.csv. Throws BadTable, naming the file, where it lacks.
inline Architecture published_model(const std::filesystem::path& folder, const std::string& name) {
  const Table table(folder, "models");
  for (const Row& row : table.rows())
    if (row.text("model") == name) return architecture_from(row);
  throw BadTable((folder / "models.csv").string() + ": there is no model " + name);
}

}  // namespace troupe::published
