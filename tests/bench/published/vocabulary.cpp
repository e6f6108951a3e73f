// Output layers that are too heavy for the last stage: vocabulary_parallelism (Yeung et al. 2025,
// arXiv:2411.05288).
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tests/bench/published/score.h"
#include "tests/support/vocabulary_run.h"

namespace troupe::published {
std::vector<Score> score_vocabulary_parallelism(const std::filesystem::path& folder) {
  const Table table(folder, "vocabulary_parallelism");
  const std::vector<std::string> plain_first{"Baseline", "Redis", "Interlaced", "Vocab-1",
                                             "Vocab-2"};
  struct Pair {
    double predicted = 0, measured = 0;
  };
  std::map<std::pair<std::string, std::string>, std::map<std::string, Pair>> settings;
  Errors absolute, ratio, memory;
  std::vector<std::string> problems;
  std::size_t searched = 0, optimal = 0;
  use_rows(table, problems, [&](const Row& row) {
    const VocabularyTableRun run(row);
    const std::string& schedule = row.text("schedule");
    if (std::find(plain_first.begin(), plain_first.end(), schedule) == plain_first.end()) return;
    if (row.text("metric") == "peak_memory") {
      memory.add(run.peak_bytes(schedule) / static_cast<double>(1_GiB), row.number("value"));
      return;
    }
    if (row.text("metric") != "mfu") return;
    const Pair both{100 * run.mfu(schedule), row.number("value")};
    absolute.add(both.predicted, both.measured);
    settings[{row.text("seq"), row.text("vocab_k")}][schedule] = both;
    if (schedule == "Redis") {
      ++searched;
      optimal += run.search_is_as_good() ? 1 : 0;
    }
  });
  for (const auto& [setting, runs] : settings) {
    const Pair* reference = nullptr;
    for (const std::string& schedule : plain_first) {
      const auto found = runs.find(schedule);
      if (found == runs.end()) continue;
      if (reference == nullptr) {
        reference = &found->second;
        continue;
      }
      ratio.add(found->second.predicted / reference->predicted,
                found->second.measured / reference->measured);
    }
  }
  Score one = ratio.score("vocabulary_parallelism", "MFU against the plainest schedule");
  require_mean(one, 0.08);
  one.notes.push_back(
      fmt::format("the redistributed partition: in {} of {} settings the planner's search finds "
                  "stages that end the step no later",
                  optimal, searched));
  one.notes.push_back(
      "nothing fitted on this table; the share of the memory's bandwidth is the one fitted for "
      "zero_bubble, whose framework this one extends");
  one.notes.insert(one.notes.end(), problems.begin(), problems.end());
  if (one.used > 0 && optimal < searched) one.reached = false;
  Score two = absolute.score("vocabulary_parallelism", "MFU");
  Score three = memory.score("vocabulary_parallelism", "peak memory");
  std::vector<Score> out{one, two, three};
  for (Score& score : out) score.left_out = table.size() - score.used;
  return out;
}

}  // namespace troupe::published
