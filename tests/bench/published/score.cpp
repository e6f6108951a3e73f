#include "tests/bench/published/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace troupe::published {

void Errors::add(double predicted, double measured) {
  if (!std::isfinite(predicted) || !std::isfinite(measured) || measured == 0)
    throw BadTable(
        fmt::format("nothing can be compared: {} is predicted, {} measured", predicted, measured));
  values_.push_back(predicted / measured - 1);
}

double Errors::mean() const {
  double sum = 0;
  for (const double value : values_) sum += std::abs(value);
  return values_.empty() ? 0 : sum / static_cast<double>(values_.size());
}

double Errors::maximum() const {
  double most = 0;
  for (const double value : values_) most = std::max(most, std::abs(value));
  return most;
}

double Errors::bias() const {
  double sum = 0;
  for (const double value : values_) sum += value;
  return values_.empty() ? 0 : sum / static_cast<double>(values_.size());
}

double Errors::median() const {
  if (values_.empty()) return 0;
  std::vector<double> sorted;
  for (const double value : values_) sorted.push_back(std::abs(value));
  std::sort(sorted.begin(), sorted.end());
  const std::size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

Score Errors::score(const std::string& table, const std::string& quantity) const {
  Score out;
  out.table = table;
  out.quantity = quantity;
  out.used = count();
  out.mean = mean();
  out.maximum = maximum();
  out.bias = bias();
  return out;
}

void use_rows(const Table& table,
              std::vector<std::string>& problems,
              const std::function<void(const Row& row)>& use) {
  std::vector<std::string> found;
  for (const Row& row : table.sound_rows()) {
    std::string reason;
    try {
      use(row);
      continue;
    } catch (const std::exception& error) {
      reason = error.what();
    }
    // What names no line of the file does so here; a column that is missing is missing everywhere.
    const std::string file = row.place().substr(0, row.place().rfind(':'));
    if (reason.rfind(file, 0) != 0) reason = row.place() + ": " + reason;
    if (std::find(found.begin(), found.end(), reason) == found.end()) found.push_back(reason);
  }
  constexpr std::size_t shown = 10;
  for (std::size_t i = 0; i < std::min(shown, found.size()); ++i)
    problems.push_back("left out: " + found[i]);
  if (found.size() > shown)
    problems.push_back(
        fmt::format("left out: {} more rows that cannot be used", found.size() - shown));
}

void require_mean(Score& score, double most) {
  score.target = fmt::format("mean <= {:.3g} %", most * 100);
  if (score.used > 0) score.reached = score.mean <= most;
}

void require_exact(Score& score, double tolerance) {
  score.target = tolerance > 0 ? fmt::format("each row within {:.3g} %", tolerance * 100) : "exact";
  if (score.used > 0) score.reached = score.maximum <= tolerance;
}

Outcome score_all(const std::filesystem::path& folder, const std::vector<const Entry*>& tables) {
  Outcome out;
  for (const Entry* table : tables) {
    try {
      for (Score& score : table->score(folder)) out.scores.push_back(std::move(score));
    } catch (const std::exception& error) {
      out.errors.emplace_back(table->name, error.what());
    }
  }
  return out;
}

}  // namespace troupe::published
