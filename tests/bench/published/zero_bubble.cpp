// Bubbles, throughput and memory of zero-bubble schedules: zero_bubble (Qi et al. 2024,
// arXiv:2401.10241, tables 3 to 5), simulated with priced actions.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tests/bench/published/fit.h"
#include "tests/support/zero_bubble_run.h"

namespace troupe::published {
namespace {

/// Differences of rates, not relative ones.
struct Differences {
  std::vector<double> values;
  Score score(const std::string& quantity, double most) const {
    Score out;
    out.table = "zero_bubble";
    out.quantity = quantity;
    out.used = values.size();
    for (const double value : values) {
      out.mean += std::abs(value) / static_cast<double>(values.size());
      out.bias += value / static_cast<double>(values.size());
      out.maximum = std::max(out.maximum, std::abs(value));
    }
    out.target = fmt::format("each row within {}", most);
    if (out.used > 0) out.reached = out.maximum <= most;
    const auto within = std::count_if(values.begin(), values.end(),
                                      [=](double value) { return std::abs(value) <= most; });
    out.notes.push_back(fmt::format("{} of {} rows within {}", within, values.size(), most));
    return out;
  }
};

constexpr const char* framework_name = "A100 16-bit zero-bubble Megatron";

/// The share of the memory's bandwidth is fitted. Fitting data are the rows of plain 1F1B.
std::vector<FittedRun> throughputs(const Table& table, std::vector<std::string>& problems) {
  std::vector<FittedRun> out;
  use_rows(table, problems, [&](const Row& row) {
    if (row.text("metric") != "throughput") return;
    const std::string name = row.text("schedule");
    FittedRun one{row.text("row_id"), framework_name, name == "1F1B", row.positive("value")};
    one.predicted = [=](double share) { return ZeroBubbleRun(row, share).throughput(name); };
    const ZeroBubbleRun possible(row);  // throws where it is not; simulating takes long
    out.push_back(one);
  });
  return out;
}

}  // namespace

std::vector<Score> score_zero_bubble(const std::filesystem::path& folder) {
  const std::string table_name = "zero_bubble";
  const Table table(folder, table_name), own(own_folder(), table_name);
  const FitRange memory_share{0.1, 1, AcceleratorRates{}.memory_achievable};
  const auto from = [&](const std::filesystem::path& at) {
    std::vector<std::string> ignored;
    return throughputs(at == folder ? table : own, ignored);
  };
  const FittedValues values = fit_values(from, folder, memory_share);
  const double share = value_of(values, framework_name, memory_share.unfitted);
  Differences fused, split;
  Errors memory;
  std::vector<std::string> problems, ignored;
  use_rows(table, problems, [&](const Row& row) {
    const ZeroBubbleRun run(row, share);
    const std::string& metric = row.text("metric");
    const std::string& name = row.text("schedule");
    const double value = row.number("value");
    if (metric == "bubble_rate")
      (name.starts_with("1F1B") ? fused : split).values.push_back(run.bubble_rate(name) - value);
    else if (metric == "peak_memory")
      memory.add(run.peak_bytes(name) / static_cast<double>(1_GiB), value);
  });
  Score one = fused.score("bubble rate, 1F1B and interleaved (difference)", 0.02);
  const Score two = split.score("bubble rate, zero bubble (difference)", 0.015);
  Score three = score_fitted(throughputs(table, ignored), values, memory_share, table_name,
                             "samples a second and GPU", table.size());
  const Score four = memory.score(table_name, "peak memory");
  one.notes.push_back(
      "one value, the share of the memory's bandwidth, on the rows of 1F1B's throughput, not on "
      "bubbles: " +
      to_text(values) + "; vocabulary: 32,000");
  one.notes.insert(one.notes.end(), problems.begin(), problems.end());
  std::vector<Score> out{one, two, three, four};
  for (Score& score : out) score.left_out = table.size() - score.used - score.fitted_rows;
  return out;
}

}  // namespace troupe::published
