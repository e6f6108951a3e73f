/// A table with a text form for people and a JSON form for programs, from the same rows.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace troupe {

/// One column: its title in text, its key in JSON.
struct TableColumn {
  std::string title;
  std::string key;
  bool right = false;  ///< numbers stand to the right
};

/// What people see and what programs get.
struct TableCell {
  std::string text;
  nlohmann::json value;
};

/// "12.5 %" of 0.125.
TableCell share_cell(double share);

class Table {
 public:
  explicit Table(std::vector<TableColumn> columns) : columns_(std::move(columns)) {}
  /// Promise: one cell per column.
  void add(std::vector<TableCell> row);
  const std::vector<TableColumn>& columns() const { return columns_; }
  const std::vector<std::vector<TableCell>>& rows() const { return rows_; }

  /// Title line, then rows; two spaces between columns.
  std::string to_text() const;
  /// A list of objects.
  nlohmann::json to_json() const;

 private:
  std::vector<TableColumn> columns_;
  std::vector<std::vector<TableCell>> rows_;
};

}  // namespace troupe
