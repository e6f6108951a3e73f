#include "apps/table.h"

#include <fmt/format.h>

#include <algorithm>

#include "planner/result.h"

namespace troupe {
namespace {

/// Characters on a terminal: bytes that begin one.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string padded(const std::string& text, std::size_t width, bool right) {
  const std::size_t own = width_of(text);
  const std::string space(width > own ? width - own : 0, ' ');
  return right ? space + text : text + space;
}

}  // namespace

TableCell share_cell(double share) {
  return {fmt::format("{:.1f} %", 100 * share), share};
}

void Table::add(std::vector<TableCell> row) {
  EXPECTS(row.size() == columns_.size());
  rows_.push_back(std::move(row));
}

std::string Table::to_text() const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    widths.push_back(width_of(columns_[c].title));
    for (const auto& row : rows_) widths[c] = std::max(widths[c], width_of(row[c].text));
  }
  std::string out;
  const auto line = [&](const auto& text_of) {
    std::string text;
    for (std::size_t c = 0; c < columns_.size(); ++c)
      text += (c == 0 ? "" : "  ") + padded(text_of(c), widths[c], columns_[c].right);
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line([&](std::size_t c) { return columns_[c].title; });
  for (const auto& row : rows_) line([&](std::size_t c) { return row[c].text; });
  return out;
}

nlohmann::json Table::to_json() const {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& row : rows_) {
    nlohmann::json object = nlohmann::json::object();
    for (std::size_t c = 0; c < columns_.size(); ++c) object[columns_[c].key] = row[c].value;
    list.push_back(std::move(object));
  }
  return list;
}

}  // namespace troupe
