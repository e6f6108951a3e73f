/// Published bubbles of zero-bubble schedules, and output layers redistributed or spread over the
/// stages, against what the planner simulates of them.
#include <cmath>
#include <map>

#include "tests/support/catch.h"
#include "tests/support/vocabulary_run.h"
#include "tests/support/zero_bubble_run.h"

using namespace troupe;
using namespace troupe::published;

namespace {

const std::filesystem::path folder = TROUPE_SOURCE_DIR "/tests/data/published";

}  // namespace

TEST_CASE("zero_bubble.csv: bubbles of the settings that simulate fast") {
  const Table table(folder, "zero_bubble");
  std::size_t used = 0;
  for (const Row& row : table.sound_rows()) {
    if (row.text("metric") != "bubble_rate") continue;
    if (row.integer("stages") * row.integer("microbatches") > 1024) continue;
    const std::string& name = row.text("schedule");
    INFO(row.text("row_id") << " " << name);
    const double difference = ZeroBubbleRun(row).bubble_rate(name) - row.number("value");
    CHECK(std::abs(difference) <= (name.starts_with("1F1B") ? 0.02 : 0.015));
    ++used;
  }
  CHECK(used == 18);
}

TEST_CASE("vocabulary_parallelism.csv: MFU against the plain pipeline, and its redistribution") {
  const Table table(folder, "vocabulary_parallelism");
  std::map<std::string, std::pair<double, double>> plain;  // predicted and measured
  const auto setting = [](const Row& row) { return row.text("seq") + " " + row.text("vocab_k"); };
  for (const Row& row : table.sound_rows())
    if (row.text("metric") == "mfu" && row.text("schedule") == "Baseline")
      plain[setting(row)] = {VocabularyTableRun(row).mfu("Baseline"), row.number("value")};
  double errors = 0, used = 0;
  for (const Row& row : table.sound_rows()) {
    const std::string& schedule = row.text("schedule");
    if (row.text("metric") != "mfu" || schedule == "Baseline") continue;
    INFO(row.text("row_id") << " " << schedule);
    const VocabularyTableRun run(row);
    if (schedule == "Redis") {
      CHECK(run.slowest(run.stages(schedule)) <= run.least_slowest() * (1 + 1e-9));
      CHECK(run.search_is_as_good());
    }
    const auto base = plain.find(setting(row));
    if (base == plain.end()) continue;
    const double ratio = run.mfu(schedule) / base->second.first;
    errors += std::abs(ratio / (row.number("value") / base->second.second) - 1);
    ++used;
  }
  REQUIRE(used == 12);
  CHECK(errors / used <= 0.08);
}
