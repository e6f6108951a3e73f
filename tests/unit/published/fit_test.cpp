/// What is fitted for the scores of published tables, on which rows, and that these are not scored.
#include "tests/bench/published/fit.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/table_lines.h"
#include "tests/support/temporary_folder.h"

using namespace troupe;
using namespace troupe::test;
using published::FittedRun;

namespace {

/// A run that takes `work` seconds at efficiency 1.
FittedRun run_of(const std::string& id, const std::string& group, double work, double efficiency) {
  FittedRun out{id, group};
  out.measured = work / efficiency;
  out.flops = work;
  out.predicted = [work](double value) { return work / value; };
  return out;
}

std::vector<FittedRun> runs_of(std::size_t count, const std::string& group, double efficiency) {
  std::vector<FittedRun> out;
  for (std::size_t i = 0; i < count; ++i)
    out.push_back(
        run_of(group + std::to_string(i), group, 1.0 + static_cast<double>(i), efficiency));
  return out;
}

std::set<std::string> declared(std::vector<FittedRun> runs) {
  published::declare_every_fifth(runs);
  std::set<std::string> out;
  for (const FittedRun& run : runs)
    if (run.declared) out.insert(run.id);
  return out;
}

std::vector<published::Score> scores_of(const std::string& name,
                                        const std::filesystem::path& folder) {
  const std::vector<published::Entry>& all = published::entries();
  const auto at = std::find_if(all.begin(), all.end(),
                               [&](const published::Entry& entry) { return entry.name == name; });
  REQUIRE(at != all.end());
  return at->score(folder);
}

}  // namespace

TEST_CASE("a fifth of each group is fitting data, whatever the order and the other groups") {
  std::vector<FittedRun> runs = runs_of(11, "a", 1);
  const std::set<std::string> alone = declared(runs);
  CHECK(alone.size() == 3);  // 11 / 5, rounded up
  std::reverse(runs.begin(), runs.end());
  for (const FittedRun& other : runs_of(6, "b", 1)) runs.push_back(other);
  const std::set<std::string> together = declared(runs);
  CHECK(together.size() == 3 + 2);
  CHECK(std::includes(together.begin(), together.end(), alone.begin(), alone.end()));
  CHECK(declared(runs_of(1, "single", 1)).empty());  // nothing would be left to score
  CHECK(declared(runs_of(2, "pair", 1)).size() == 1);
}

TEST_CASE("each group's value is found, also beside a row that nothing explains") {
  std::vector<FittedRun> runs = runs_of(25, "a", 0.83);
  for (const FittedRun& other : runs_of(4, "b", 0.31)) runs.push_back(other);
  published::declare_every_fifth(runs);
  const auto first =
      std::find_if(runs.begin(), runs.end(), [](const FittedRun& run) { return run.declared; });
  first->measured *= 20;
  const published::FittedValues values = published::fit_values(runs, {0.1, 1.5, 1});
  CHECK(values.at("a").value == Approx(0.83).epsilon(1e-3));
  CHECK(values.at("a").rows == 5);
  CHECK(values.at("b").value == Approx(0.31).epsilon(1e-3));
  CHECK(published::value_of(values, "b", 9) == values.at("b").value);
  CHECK(published::value_of(values, "unknown", 9) == values.at("a").value);  // the upper median
  CHECK(published::value_of({}, "unknown", 9) == 9);
}

TEST_CASE("rows that were fitted on are not scored") {
  std::vector<FittedRun> runs = runs_of(10, "a", 0.5);
  published::declare_every_fifth(runs);
  for (FittedRun& run : runs)
    if (run.declared) run.measured *= 2;  // a fit on them is wrong by half for the others
  const published::FitRange range{0.05, 1.5, 1};
  const published::Score score = published::score_fitted(runs, published::fit_values(runs, range),
                                                         range, "table", "step time", 12);
  CHECK(score.used == 8);
  CHECK(score.fitted_rows == 2);
  CHECK(score.left_out == 2);
  CHECK(score.mean == Approx(1).epsilon(1e-3));
  CHECK(score.fitted.at("a").value == Approx(0.25).epsilon(1e-3));
}

TEST_CASE("another folder is fitted on its own rows, in any order") {
  const std::string table = "mosaicml_mpt_fsdp";
  const TemporaryFolder folder;
  std::vector<std::string> lines = lines_of_table(table);
  std::reverse(lines.begin() + 1, lines.end());
  write_table(folder.path(), table, lines);
  const published::Score own = scores_of(table, published::own_folder()).front();
  const published::Score same = scores_of(table, folder.path()).front();
  CHECK(same.used == own.used);
  CHECK(same.mean == Approx(own.mean));
  CHECK(same.fitted.at("a100 bf16").value == own.fitted.at("a100 bf16").value);

  // Half of the rows: other fitting data, another value, and still near.
  std::vector<std::string> half{lines[0]};
  for (std::size_t i = 1; i < lines.size(); i += 2) half.push_back(lines[i]);
  write_table(folder.path(), table, half);
  const published::Score other = scores_of(table, folder.path()).front();
  CHECK(other.used + other.fitted_rows == half.size() - 1);
  CHECK(other.fitted.at("a100 bf16").value != own.fitted.at("a100 bf16").value);
  CHECK(other.mean < 0.10);
}

TEST_CASE("what one folder has no fitting rows for comes from the project's own copy") {
  const std::string table = "hf_ultrascale_h100";
  const TemporaryFolder folder;
  std::vector<std::string> kept;
  for (const std::string& line : lines_of_table(table))
    if (line.find(",1.34B,") == std::string::npos) kept.push_back(line);
  write_table(folder.path(), table, kept);
  for (const published::Score& score : scores_of(table, folder.path())) {
    if (score.quantity != "step time") continue;
    CHECK(score.fitted_rows == 0);
    CHECK(score.used > 400);
    REQUIRE(score.fitted.size() == 2);
    for (const auto& [group, fitted] : score.fitted) CHECK(fitted.rows == 0);
    CHECK(*score.reached);
  }
}

TEST_CASE("the host's time of an op that other tables use is the one fitted for vtrain") {
  const published::Score score =
      scores_of("vtrain_single_node_a100", published::own_folder()).front();
  REQUIRE(score.fitted.size() == 1);
  CHECK(score.fitted.begin()->second.value == Approx(published::eager_host_per_op).epsilon(0.03));
}
