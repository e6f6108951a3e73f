#include "tests/bench/published/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace troupe::published {
namespace {

/// FNV-1a.
std::uint64_t hash_of(const std::string& text) {
  std::uint64_t out = 0xcbf29ce484222325;
  for (const char c : text) out = (out ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return out;
}

/// The mean absolute error, which is what is scored: one row that no value explains does not pull
/// at it as it would at a sum of squares.
double mean_error(const std::vector<const FittedRun*>& runs, double value) {
  Errors errors;
  for (const FittedRun* run : runs) errors.add(run->predicted(value), run->measured);
  return errors.mean();
}

/// Around the best point of a grid whose steps are equal ratios, by shrinking the step: errors of
/// few rows have more than one minimum.
double least_error(const std::vector<const FittedRun*>& runs, const FitRange& range) {
  constexpr int steps = 24, rounds = 14;
  double ratio = std::pow(range.high / range.low, 1.0 / steps);
  double best = range.low, least = mean_error(runs, best);
  const auto attempt = [&](double value) {
    if (value < range.low || value > range.high) return;
    const double error = mean_error(runs, value);
    if (error >= least) return;
    best = value;
    least = error;
  };
  for (int i = 1; i <= steps; ++i) attempt(range.low * std::pow(ratio, i));
  for (int i = 0; i < rounds; ++i) {
    ratio = std::sqrt(ratio);
    const double centre = best;
    attempt(centre * ratio);
    attempt(centre / ratio);
  }
  return best;
}

}  // namespace

FittedRun checked(const FittedRun& run, double value) {
  const double predicted = run.predicted(value);
  for (const double one : {predicted, run.measured})
    if (!std::isfinite(one) || one <= 0)
      throw BadTable(fmt::format("nothing can be compared: {} is predicted, {} measured", predicted,
                                 run.measured));
  return run;
}

void declare_every_fifth(std::vector<FittedRun>& runs) {
  std::map<std::string, std::vector<FittedRun*>> groups;
  for (FittedRun& run : runs) groups[run.group].push_back(&run);
  for (auto& [name, group] : groups) {
    if (group.size() < 2) continue;
    std::sort(group.begin(), group.end(), [](const FittedRun* a, const FittedRun* b) {
      return std::pair(hash_of(a->id), a->id) < std::pair(hash_of(b->id), b->id);
    });
    for (std::size_t i = 0; i < (group.size() + 4) / 5; ++i) group[i]->declared = true;
  }
}

FittedValues fit_values(const std::vector<FittedRun>& runs, const FitRange& range) {
  std::map<std::string, std::vector<const FittedRun*>> groups;
  for (const FittedRun& run : runs)
    if (run.declared) groups[run.group].push_back(&run);
  FittedValues out;
  for (const auto& [name, group] : groups) out[name] = {least_error(group, range), group.size()};
  return out;
}

double value_of(const FittedValues& values, const std::string& group, double otherwise) {
  if (const auto found = values.find(group); found != values.end()) return found->second.value;
  if (values.empty()) return otherwise;
  std::vector<double> sorted;
  for (const auto& [name, fitted] : values) sorted.push_back(fitted.value);
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

FittedValues fit_values(const RunsOf& runs_of,
                        const std::filesystem::path& folder,
                        const FitRange& range) {
  FittedValues out = fit_values(runs_of(folder), range);
  std::error_code ignored;
  if (std::filesystem::equivalent(folder, own_folder(), ignored)) return out;
  for (const auto& [name, fitted] : fit_values(runs_of(own_folder()), range))
    out.try_emplace(name, FittedValue{fitted.value, 0});
  return out;
}

std::filesystem::path own_folder() {
  return TROUPE_SOURCE_DIR "/tests/data/published";
}

Score score_fitted(const std::vector<FittedRun>& runs,
                   const FittedValues& values,
                   const FitRange& range,
                   const std::string& table,
                   const std::string& quantity,
                   std::size_t rows) {
  Runs scored;
  std::size_t declared = 0;
  for (const FittedRun& run : runs) {
    if (run.declared)
      ++declared;
    else
      scored.add(run.predicted(value_of(values, run.group, range.unfitted)), run.measured,
                 run.flops);
  }
  Score out = scored.score(table, quantity, rows);
  for (const auto& [group, fitted] : values)
    if (std::any_of(runs.begin(), runs.end(), [&](auto& run) { return run.group == group; }))
      out.fitted[group] = fitted;
  out.fitted_rows = declared;
  out.left_out -= declared;
  return out;
}

std::string to_text(const FittedValues& values) {
  std::string out;
  for (const auto& [name, fitted] : values)
    out +=
        fmt::format("{}{} {:.3g} on {}", out.empty() ? "" : ", ", name, fitted.value, fitted.rows);
  return out;
}

const FitRange share_of_peak{0.05, 1, h100_rates().achievable};

std::vector<FittedRun> runs_of(const Table& table,
                               const TwoWidths& widths,
                               std::vector<std::string>& problems) {
  std::vector<FittedRun> out;
  for (const bool in_8_bits : {false, true}) {
    const FittedValues in_16_bits = fit_values(out, share_of_peak);
    use_rows(table, problems, [&](const Row& row) {
      if (widths.in_8_bits(row) == in_8_bits)
        out.push_back(checked(widths.run_of(row, in_16_bits), share_of_peak.unfitted));
    });
    declare_every_fifth(out);
  }
  return out;
}

Score score_step_times(const std::filesystem::path& folder,
                       const Table& table,
                       const std::string& name,
                       const TwoWidths& widths) {
  const Table own(own_folder(), name);
  const auto from = [&](const std::filesystem::path& at) {
    std::vector<std::string> ignored;
    return runs_of(at == folder ? table : own, widths, ignored);
  };
  const FittedValues values = fit_values(from, folder, share_of_peak);
  std::vector<std::string> problems;
  Score time = score_fitted(runs_of(table, widths, problems), values, share_of_peak, name,
                            "step time", table.size());
  require_mean(time, 0.10);
  time.notes.push_back(
      "the share of the peak that large products reach, on every fifth row of a "
      "GPU and precision: " +
      to_text(values));
  time.notes.insert(time.notes.end(), problems.begin(), problems.end());
  return time;
}

}  // namespace troupe::published
