// Bubbles, throughput and memory of zero-bubble schedules: zero_bubble (Qi et al. 2024,
// arXiv:2401.10241, tables 3 to 5), simulated with priced actions.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tests/bench/published/score.h"
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
    out.reached = out.used > 0 && out.maximum <= most;
    return out;
  }
};

}  // namespace

std::vector<Score> score_zero_bubble(const std::filesystem::path& folder) {
  const Table table(folder, "zero_bubble");
  Differences fused, split;
  Errors throughput, memory;

  for (const Row& row : table.sound_rows()) {
    const ZeroBubbleRun run(row);
    const std::string& metric = row.text("metric");
    const std::string& name = row.text("schedule");
    const double value = row.number("value");
    if (metric == "bubble_rate") {
      (name.starts_with("1F1B") ? fused : split).values.push_back(run.bubble_rate(name) - value);
    } else if (metric == "throughput") {
      throughput.add(run.throughput(name), value);
    } else if (metric == "peak_memory") {
      memory.add(run.peak_bytes(name) / static_cast<double>(1_GiB), value);
    }
  }
  Score one = fused.score("bubble rate, 1F1B and interleaved (difference)", 0.02);
  const Score two = split.score("bubble rate, zero bubble (difference)", 0.015);
  const Score three = throughput.score("zero_bubble", "samples a second and GPU");
  const Score four = memory.score("zero_bubble", "peak memory");
  one.notes.push_back(
      "one fitted value, memory bandwidth: on the rows of 1F1B's throughput; vocabulary: 32,000");
  std::vector<Score> out{one, two, three, four};
  for (Score& score : out) score.left_out = table.size() - score.used;
  return out;
}

}  // namespace troupe::published
