#include "tests/support/published_table.h"

#include <csv.h>
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>

namespace troupe::published {
namespace {

struct Reading {
  std::vector<std::vector<std::string>> records;
  std::vector<std::string> fields;
};

void take_field(void* data, std::size_t size, void* reading) {
  static_cast<Reading*>(reading)->fields.emplace_back(static_cast<const char*>(data), size);
}
void take_record(int, void* reading) {
  auto* into = static_cast<Reading*>(reading);
  into->records.push_back(std::move(into->fields));
  into->fields.clear();
}

std::vector<std::vector<std::string>> records_of(const std::string& path, const std::string& text) {
  csv_parser parser;
  if (csv_init(&parser, CSV_STRICT | CSV_STRICT_FINI) != 0)
    throw BadTable(path + ": no memory for a parser");
  Reading reading;
  const bool whole = csv_parse(&parser, text.data(), text.size(), take_field, take_record,
                               &reading) == text.size() &&
                     csv_fini(&parser, take_field, take_record, &reading) == 0;
  const std::string reason = csv_strerror(csv_error(&parser));
  csv_free(&parser);
  if (!whole)
    throw BadTable(fmt::format("{}: after record {}: {}", path, reading.records.size(), reason));
  return std::move(reading.records);
}

std::size_t line_breaks(const std::vector<std::string>& record) {
  std::size_t count = 1;
  for (const std::string& field : record)
    for (const char c : field) count += c == '\n' ? 1U : 0U;
  return count;
}

}  // namespace

Table::Table(const std::filesystem::path& folder, const std::string& name)
    : path_((folder / (name + ".csv")).string()) {
  std::ifstream file(path_, std::ios::binary);
  if (!file) throw BadTable(path_ + ": cannot be opened");
  std::size_t line = 1;
  for (std::string remark; file.peek() == '#'; ++line) std::getline(file, remark);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  auto records = records_of(path_, text);
  if (records.empty()) throw BadTable(path_ + ": has no header");
  for (std::size_t i = 0; i < records[0].size(); ++i)
    if (!columns_.emplace(records[0][i], i).second)
      throw BadTable(fmt::format("{}:{}: two columns are named {}", path_, line, records[0][i]));
  line += line_breaks(records[0]);
  for (std::size_t i = 1; i < records.size(); ++i) {
    const std::size_t lines = line_breaks(records[i]);
    if (records[i].size() != columns_.size())
      throw BadTable(fmt::format("{}:{}: {} fields under {} columns", path_, line,
                                 records[i].size(), columns_.size()));
    rows_.push_back(std::move(records[i]));
    lines_.push_back(line);
    line += lines;
  }
}

std::vector<std::string> Table::columns() const {
  std::vector<std::string> out;
  for (const auto& [name, index] : columns_) out.push_back(name);
  return out;
}

std::vector<Row> Table::rows() const {
  std::vector<Row> out;
  for (std::size_t i = 0; i < size(); ++i) out.push_back(row(i));
  return out;
}

std::vector<Row> Table::sound_rows() const {
  std::vector<Row> out;
  for (const Row& row : rows())
    if (!row.suspect()) out.push_back(row);
  return out;
}

std::string Row::place() const {
  return fmt::format("{}:{}", table_->path_, table_->lines_[index_]);
}

const std::string& Row::text(const std::string& column) const {
  const auto found = table_->columns_.find(column);
  if (found == table_->columns_.end())
    throw BadTable(fmt::format("{}: has no column {}", table_->path_, column));
  return table_->rows_[index_][found->second];
}

std::optional<double> Row::maybe_number(const std::string& column) const {
  const std::string& field = text(column);
  if (field.empty()) return std::nullopt;
  double value = 0;
  const char* end = field.data() + field.size();
  const auto [stop, failure] = std::from_chars(field.data(), end, value);
  if (failure != std::errc{} || stop != end || !std::isfinite(value))
    throw BadTable(fmt::format("{}: {} = \"{}\" is not a number", place(), column, field));
  return value;
}

double Row::number(const std::string& column) const {
  const auto value = maybe_number(column);
  if (!value) throw BadTable(fmt::format("{}: {} is empty", place(), column));
  return *value;
}

std::uint64_t Row::integer(const std::string& column) const {
  const double value = number(column);
  const auto whole = static_cast<std::uint64_t>(value);
  if (value < 0 || value > 9e15 || static_cast<double>(whole) != value)
    throw BadTable(
        fmt::format("{}: {} = \"{}\" is not a whole number", place(), column, text(column)));
  return whole;
}

std::uint64_t Row::count(const std::string& column) const {
  const std::uint64_t value = integer(column);
  if (value < 1 || value > 1'000'000'000)
    throw BadTable(
        fmt::format("{}: {} = \"{}\" is no count from 1 to 1e9", place(), column, text(column)));
  return value;
}

double Row::positive(const std::string& column) const {
  const double value = number(column);
  if (value <= 0)
    throw BadTable(fmt::format("{}: {} = \"{}\" is not above 0", place(), column, text(column)));
  return value;
}

bool Row::flag(const std::string& column) const {
  const std::string& field = text(column);
  if (field == "True" || field == "true" || field == "1") return true;
  if (field == "False" || field == "false" || field == "0") return false;
  throw BadTable(fmt::format("{}: {} = \"{}\" is neither True nor False", place(), column, field));
}

bool Row::suspect() const {
  return table_->has("note") && text("note").find("SUSPECT") != std::string::npos;
}

}  // namespace troupe::published
