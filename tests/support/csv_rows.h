/// Rows of a CSV file by column name, for tests. Quoted fields keep their commas; lines that start
/// with '#' are remarks.
#pragma once

#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace troupe::testing {

using CsvRow = std::map<std::string, std::string>;

inline std::vector<std::string> csv_fields(const std::string& line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  return fields;
}

/// `path` is relative to the source tree. Throws when the file or a field is missing.
inline std::vector<CsvRow> csv_rows(const std::string& path) {
  std::ifstream file(std::string(TROUPE_SOURCE_DIR) + "/" + path);
  std::vector<std::string> header;
  std::vector<CsvRow> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    std::vector<std::string> fields = csv_fields(line);
    if (header.empty()) {
      header = std::move(fields);
      continue;
    }
    if (fields.size() != header.size()) throw std::runtime_error(path + ": fields in: " + line);
    CsvRow& row = rows.emplace_back();
    for (std::size_t i = 0; i < header.size(); ++i) row[header[i]] = fields[i];
  }
  if (rows.empty()) throw std::runtime_error(path + ": no rows");
  return rows;
}

}  // namespace troupe::testing
