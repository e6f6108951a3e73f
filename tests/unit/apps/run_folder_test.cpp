#include "apps/run_folder.h"

#include <iterator>

#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string line_of(std::uint64_t step) {
  EvaluationRow row;
  row.step = step;
  row.loss = 0.5;
  row.tokens = 10;
  return metrics_line(row);
}

}  // namespace

TEST_CASE("an event says when it happened and at which step") {
  const RunEvent event{"node_joined", "node n0 (pid 7)", 12,
                       std::chrono::system_clock::time_point(std::chrono::milliseconds{1'500'042})};
  CHECK(event_line(event) ==
        R"json({"time":"1970-01-01T00:25:00.042Z","step":12,"event":"node_joined",)json"
        R"json("text":"node n0 (pid 7)"})json");
}

TEST_CASE("a folder that holds a run is not used again") {
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path() / "deep" / "run";
  CHECK(RunFolder::check_unused(folder).ok());
  CHECK_FALSE(fs::exists(folder));
  {
    auto run = RunFolder::create(folder);
    REQUIRE(run.ok());
    CHECK(run->add_metrics(line_of(1)).ok());
  }
  const auto again = RunFolder::create(folder);
  REQUIRE_FALSE(again.ok());
  CHECK(again.error().code == ErrorCode::invalid_input);
  CHECK(again.error().text.find("--resume") != std::string::npos);
}

TEST_CASE("a folder is one run's at a time") {
  const TemporaryFolder temporary;
  EarlierRows earlier;
  {
    const auto first = RunFolder::create(temporary.path());
    REQUIRE(first.ok());
    CHECK(first->write("config.toml", "x").ok());
    const auto second = RunFolder::reopen(temporary.path(), 0, earlier);
    REQUIRE_FALSE(second.ok());
    CHECK(second.error().code == ErrorCode::invalid_input);
    CHECK(second.error().text.find("belongs to a run that has not ended") != std::string::npos);
  }
  CHECK(RunFolder::reopen(temporary.path(), 0, earlier).ok());
}

TEST_CASE("a resumed run drops the rows of steps that are done again") {
  const TemporaryFolder temporary;
  {
    auto run = RunFolder::create(temporary.path());
    REQUIRE(run.ok());
    for (std::uint64_t step = 1; step <= 4; ++step) CHECK(run->add_metrics(line_of(step)).ok());
    CHECK(run->add_metrics("{\"step\": 3, \"lo").ok());  // cut off by a crash
    CHECK(run->add_event("{}").ok());
  }
  EarlierRows earlier;
  auto run = RunFolder::reopen(temporary.path(), 2, earlier);
  REQUIRE(run.ok());
  REQUIRE(earlier.evaluations.size() == 2);
  CHECK(earlier.evaluations[1].step == 2);
  CHECK(earlier.evaluations[1].loss == 0.5);
  CHECK(run->add_metrics(line_of(3)).ok());
  CHECK(read(temporary.path() / "metrics.jsonl") ==
        line_of(1) + "\n" + line_of(2) + "\n" + line_of(3) + "\n");
  CHECK(read(temporary.path() / "events.jsonl") == "{}\n");
}

TEST_CASE("files are replaced whole") {
  const TemporaryFolder temporary;
  auto run = RunFolder::create(temporary.path());
  REQUIRE(run.ok());
  CHECK(run->write("plan.json", "one").ok());
  CHECK(run->write("plan.json", "two").ok());
  CHECK(read(temporary.path() / "plan.json") == "two");
  CHECK_FALSE(fs::exists(temporary.path() / ".plan.json.part"));
  CHECK_FALSE(run->write("no/such/folder", "x").ok());
}

}  // namespace troupe
