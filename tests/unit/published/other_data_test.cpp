/// Scores of a folder that is not the project's own: rows and tables that cannot be used are named
/// and left out, the others are scored.
#include <algorithm>
#include <cmath>
#include <fstream>

#include "tests/bench/published/fit.h"
#include "tests/support/catch.h"
#include "tests/support/table_lines.h"
#include "tests/support/temporary_folder.h"

using namespace troupe;
using namespace troupe::test;
using published::BadTable;
using published::Score;

namespace {

const published::Entry& entry(const std::string& name) {
  const std::vector<published::Entry>& all = published::entries();
  return *std::find_if(all.begin(), all.end(),
                       [&](const published::Entry& one) { return one.name == name; });
}

/// The row with `from` replaced once by `to`.
std::string changed(std::string row, const std::string& from, const std::string& to) {
  const auto at = row.find(from);
  REQUIRE(at != std::string::npos);
  return row.replace(at, from.size(), to);
}

/// Fields of a line; those in quotes keep them.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> out{""};
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') quoted = !quoted;
    if (c == ',' && !quoted)
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}

/// The row with `column` set to `to`.
std::string with(const std::vector<std::string>& lines,
                 std::size_t row,
                 const std::string& column,
                 const std::string& to) {
  const std::vector<std::string> names = fields_of(lines[0]);
  std::vector<std::string> fields = fields_of(lines[row]);
  REQUIRE(fields.size() == names.size());
  const auto at = std::find(names.begin(), names.end(), column);
  REQUIRE(at != names.end());
  fields[static_cast<std::size_t>(at - names.begin())] = to;
  std::string out;
  for (const std::string& field : fields) out += (&field == &fields[0] ? "" : ",") + field;
  return out;
}

bool holds(const Score& score, const std::string& text) {
  return std::any_of(score.notes.begin(), score.notes.end(),
                     [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

}  // namespace

TEST_CASE("a row that cannot be used is named and left out, the others are scored") {
  struct Case {
    std::string table, column, value, reason;
  };
  const Case bad = GENERATE(values<Case>({
      {"vtrain_single_node_a100", "tp", "0", "tp = \"0\" is no count"},
      {"vtrain_single_node_a100", "hidden", "nan", "hidden = \"nan\" is not a number"},
      {"vtrain_single_node_a100", "hidden", "-4096", "hidden = \"-4096\" is not above 0"},
      {"vtrain_single_node_a100", "iter_time_ms", "0", "iter_time_ms = \"0\" is not above 0"},
      {"vtrain_single_node_a100", "iter_time_ms", "inf", "iter_time_ms = \"inf\" is not a number"},
      {"vtrain_single_node_a100", "dp", "1000003", "does not divide the batch"},
      {"torchtitan_llama", "model", "Llama9-8B", "the shape of Llama9-8B is not known"},
      {"torchtitan_llama", "tokens_per_s_gpu", "", "tokens_per_s_gpu is empty"},
      {"mosaicml_mpt_fsdp", "gpu", "v100_32gb", "gpu v100_32gb is none of"},
      {"mosaicml_mpt_fsdp", "model", "MPT-9b", "model MPT-9b is none of"},
      {"internevo_7b_a100", "tp", "0", "tp = \"0\" is no count"},
      {"internevo_7b_a100", "model", "GPT-2", "model GPT-2 is neither"},
      {"nemo_megatron_bridge_perf", "system", "DGX-A100", "system DGX-A100 is none of"},
      {"bloom_prequel_a100", "pp", "0", "pp = \"0\" is no count"},
      {"hf_ultrascale_h100", "model", "large", "stod"},
      {"hf_ultrascale_h100", "pp", "1000000000", "more stages than layers"},
      {"hf_ultrascale_h100", "tp", "3", "3 does not divide the attention heads"},
      {"megatron_sc21", "mbs", "1.5", "mbs = \"1.5\" is not a whole number"},
  }));
  const TemporaryFolder folder;
  std::vector<std::string> lines = lines_of_table(bad.table);
  lines.push_back(with(lines, 1, bad.column, bad.value));
  write_table(folder.path(), bad.table, lines);
  const Score own = entry(bad.table).score(published::own_folder()).front();
  std::vector<Score> scores = entry(bad.table).score(folder.path());
  const auto named = std::find_if(scores.begin(), scores.end(),
                                  [&](const Score& score) { return holds(score, bad.reason); });
  INFO(bad.table << ": " << bad.column << " = " << bad.value);
  REQUIRE(named != scores.end());
  CHECK(holds(*named, bad.table + ".csv:" + std::to_string(lines.size())));
  CHECK(scores.front().used == own.used);
  CHECK(scores.front().mean == Approx(own.mean));
}

TEST_CASE("every table copes with no rows, with one row and with a column that is missing") {
  for (const published::Entry& one : published::entries()) {
    INFO(one.name);
    const TemporaryFolder folder;
    std::filesystem::copy(published::own_folder(), folder.path());
    const std::vector<std::string> lines = lines_of_table(one.name);
    write_table(folder.path(), one.name, {lines[0]});
    for (const Score& score : one.score(folder.path())) {
      CHECK(score.used == 0);
      CHECK_FALSE(score.reached.has_value());
    }
    write_table(folder.path(), one.name, {lines[0], lines[1]});
    std::size_t seen = 0;
    for (const Score& score : one.score(folder.path())) {
      CHECK(std::isfinite(score.mean));
      seen += score.used + score.fitted_rows + score.left_out;
    }
    CHECK(seen >= 1);
    std::filesystem::remove(folder.path() / (one.name + ".csv"));
    CHECK_THROWS_WITH(one.score(folder.path()), Catch::Contains("cannot be opened"));
    write_table(folder.path(), one.name,
                {changed(lines[0], "row_id,", "row_id,oddity,"), lines[1]});
    CHECK_THROWS_AS(one.score(folder.path()), BadTable);  // more columns than fields
  }
}

TEST_CASE("rows with one reason are named once, many reasons are counted") {
  const TemporaryFolder folder;
  std::vector<std::string> lines = lines_of_table("vtrain_multi_node_a100");
  std::vector<std::string> renamed = lines;
  renamed[0] = changed(renamed[0], ",iter_time_ms,", ",iter_time,");
  write_table(folder.path(), "vtrain_multi_node_a100", renamed);
  const Score without = entry("vtrain_multi_node_a100").score(folder.path()).front();
  CHECK(without.used == 0);
  CHECK_FALSE(without.reached.has_value());
  CHECK(std::count_if(without.notes.begin(), without.notes.end(), [](const std::string& note) {
          return note.find("has no column iter_time_ms") != std::string::npos;
        }) == 1);

  for (std::size_t i = 1; i <= 12; ++i) lines[i] = with(lines, i, "gbs", "many");
  write_table(folder.path(), "vtrain_multi_node_a100", lines);
  const Score some = entry("vtrain_multi_node_a100").score(folder.path()).front();
  CHECK(some.used == lines.size() - 1 - 12);
  CHECK(holds(some, "2 more rows that cannot be used"));
}

TEST_CASE("a table that cannot be read leaves the others their scores") {
  const TemporaryFolder folder;
  write_table(folder.path(), "megatron_sc21", lines_of_table("megatron_sc21"));
  write_table(folder.path(), "internevo_7b_a100", {"row_id,row_id", "1,2"});
  write_table(folder.path(), "zero_model_states", {"row_id,params_b", "\"1,2"});
  const published::Outcome outcome = published::score_all(
      folder.path(), {&entry("internevo_7b_a100"), &entry("bloom_prequel_a100"),
                      &entry("megatron_sc21"), &entry("zero_model_states")});
  REQUIRE(outcome.scores.size() == 1);
  CHECK(outcome.scores[0].table == "megatron_sc21");
  CHECK(outcome.scores[0].used > 0);
  REQUIRE(outcome.errors.size() == 3);
  CHECK(outcome.errors[0].first == "internevo_7b_a100");
  CHECK(outcome.errors[0].second.find("two columns are named row_id") != std::string::npos);
  CHECK(outcome.errors[1].first == "bloom_prequel_a100");
  CHECK(outcome.errors[1].second.find("cannot be opened") != std::string::npos);
  CHECK(outcome.errors[2].first == "zero_model_states");
}
