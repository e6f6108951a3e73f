#include "tests/bench/published/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace troupe::published {

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

void require_mean(Score& score, double most) {
  score.target = fmt::format("mean <= {:.3g} %", most * 100);
  score.reached = score.used > 0 && score.mean <= most;
}

void require_exact(Score& score, double tolerance) {
  score.target = tolerance > 0 ? fmt::format("each row within {:.3g} %", tolerance * 100) : "exact";
  score.reached = score.used > 0 && score.maximum <= tolerance;
}

}  // namespace troupe::published
