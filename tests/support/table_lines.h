/// Lines of the project's copies of published tables, to be written elsewhere with changes.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/bench/published/fit.h"
#include "tests/support/catch.h"

namespace troupe::test {

/// Header and rows of one of the project's tables.
inline std::vector<std::string> lines_of_table(const std::string& table) {
  std::ifstream file(published::own_folder() / (table + ".csv"));
  std::vector<std::string> out;
  for (std::string line; std::getline(file, line);)
    if (!line.empty() && line[0] != '#') out.push_back(line);
  REQUIRE(out.size() > 2);
  return out;
}

inline void write_table(const std::filesystem::path& folder,
                        const std::string& table,
                        const std::vector<std::string>& lines) {
  std::ofstream file(folder / (table + ".csv"));
  for (const std::string& line : lines) file << line << "\n";
}

}  // namespace troupe::test
