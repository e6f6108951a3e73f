/// CSV files of published figures (RFC 4180, header row, '#' lines before it are remarks), read
/// strictly: a missing file, column or number is an error that names file, line and column.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace troupe::published {

/// "FILE:LINE: what is wrong".
class BadTable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Table;

/// One line of a table. Lives as long as its table.
class Row {
 public:
  Row(const Table& table, std::size_t index) : table_(&table), index_(index) {}
  const std::string& text(const std::string& column) const;
  double number(const std::string& column) const;  ///< finite
  std::uint64_t integer(const std::string& column) const;
  /// A whole number from 1 to a thousand million.
  std::uint64_t count(const std::string& column) const;
  double positive(const std::string& column) const;  ///< above 0
  /// Nothing for an empty field.
  std::optional<double> maybe_number(const std::string& column) const;
  bool flag(const std::string& column) const;  ///< True/False, true/false, 1/0
  /// Marked as contradicting itself or its neighbours: stays out of statistics.
  bool suspect() const;
  std::string place() const;  ///< "FILE:LINE"

 private:
  const Table* table_;
  std::size_t index_;
};

class Table {
 public:
  /// FOLDER/NAME.csv. Throws BadTable.
  Table(const std::filesystem::path& folder, const std::string& name);
  std::size_t size() const { return rows_.size(); }
  Row row(std::size_t index) const { return {*this, index}; }
  std::vector<Row> rows() const;
  /// Without rows that are suspect.
  std::vector<Row> sound_rows() const;
  bool has(const std::string& column) const { return columns_.contains(column); }
  std::vector<std::string> columns() const;

 private:
  friend class Row;
  std::string path_;
  std::map<std::string, std::size_t> columns_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> lines_;  ///< of the file, by row
};

}  // namespace troupe::published
