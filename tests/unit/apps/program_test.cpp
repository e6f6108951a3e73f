#include "apps/program.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "apps/config_schema.h"
#include "apps/plan_inputs.h"
#include "apps/run_config.h"
#include "tests/support/catch.h"
#include "tests/support/program_call.h"
#include "tests/support/temporary_folder.h"

namespace troupe {
namespace {}  // namespace

TEST_CASE("every help page has examples") {
  const std::vector<std::vector<std::string>> pages{{},
                                                    {"train"},
                                                    {"node"},
                                                    {"plan"},
                                                    {"simulate"},
                                                    {"check"},
                                                    {"generate"},
                                                    {"checkpoint"},
                                                    {"checkpoint", "ls"},
                                                    {"checkpoint", "verify"},
                                                    {"checkpoint", "import"},
                                                    {"checkpoint", "export"},
                                                    {"data"},
                                                    {"data", "show"},
                                                    {"explain"},
                                                    {"version"}};
  for (auto page : pages) {
    page.emplace_back("--help");
    const Outcome outcome = call(page);
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 0);
    CHECK(outcome.err.empty());
    CHECK(outcome.out.find("Examples:\n") != std::string::npos);
    std::string usage = "Usage: troupe ";
    for (std::size_t i = 0; i + 1 < page.size(); ++i) usage += page[i] + " ";
    CHECK(outcome.out.find(usage) != std::string::npos);
  }
}

TEST_CASE("explain answers an unknown key as the parser does") {
  const auto answer = call({"explain", "training.schedule"});
  CHECK(answer.code == 2);
  CHECK(answer.err == "error: there is no key \"training.schedule\"; " +
                          suggestion_for("training", "schedule") + "\n");
  CHECK(answer.err.find("[plan]") != std::string::npos);
  CHECK(call({"explain", "trainin.microbatches"}).err.find("nearest: training.microbatches") !=
        std::string::npos);
}

TEST_CASE("L018 plan shows each device's bytes by category, and its headroom") {
  const auto plan = call({"plan", "conf/demo.toml"});
  REQUIRE(plan.code == 0);
  std::istringstream lines(plan.out);
  std::string head, row;
  while (std::getline(lines, head) && head.rfind("device ", 0) != 0) {
  }
  for (const char* part :
       {"weights", "gradients", "optimizer", "activations", "workspace", "transfer", "headroom"})
    CHECK(head.find(part) != std::string::npos);
  for (const char* device : {"v100", "rtx3090", "t4"}) {
    REQUIRE(std::getline(lines, row));
    CHECK(row.rfind(device, 0) == 0);
  }
}

TEST_CASE("plan --explain gives reasons and terms, and repeats no table") {
  const auto plain = call({"plan", "conf/demo.toml"});
  const auto why = call({"plan", "conf/demo.toml", "--explain"});
  REQUIRE(why.code == 0);
  CHECK(why.out.rfind(plain.out, 0) == 0);
  const std::string reasons = why.out.substr(plain.out.size());
  for (const char* part : {"binding: ", "search: ", "runner-up: ", "in flight ", "headroom "})
    CHECK(reasons.find(part) != std::string::npos);
  CHECK(reasons.find("MiB") == std::string::npos);
}

TEST_CASE("plan --explain says what binds, and what memory and devices would buy") {
  const auto why = call({"plan", "conf/demo.toml", "--explain"});
  for (const char* part : {"binds: ", "with 1 GiB more on ", "with one more device like v100: ",
                           "with one more device like rtx3090: ", "with one more device like t4: "})
    CHECK(why.out.find(part) != std::string::npos);
  const auto json =
      nlohmann::json::parse(call({"plan", "conf/demo.toml", "--explain", "--json"}).out);
  CHECK(json.at("reasons").at("changes").size() >= 4);
  CHECK(json.at("plan").contains("stages"));
}

TEST_CASE("plan --compare puts strategies in one table, with why some are refused") {
  const auto all = call({"plan", "conf/demo.toml", "--compare"});
  REQUIRE(all.code == 0);
  for (const char* name : {"even ", "edgepipe ", "hetpipe ", "memory-balanced ", "zebra ",
                           "expert-parallel ", "auto "})
    CHECK(all.out.find(std::string("\n") + name) != std::string::npos);
  CHECK(all.out.find("no experts") != std::string::npos);
  // The automatic plan of three devices is the optimum: no other strategy may claim less.
  for (const auto& row :
       nlohmann::json::parse(call({"plan", "conf/demo.toml", "--compare", "--json"}).out))
    if (row.at("replicas") == 1) CHECK(row.at("against_best").get<double>() >= 0);
  CHECK(nlohmann::json::parse(
            call({"plan", "conf/demo.toml", "--compare=auto,hetpipe", "--json"}).out)
            .at(0)
            .at("against_best")
            .get<double>() < 1e-9);
  const auto two = call({"plan", "conf/demo.toml", "--compare=auto,zebra", "--json"});
  const auto rows = nlohmann::json::parse(two.out);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].at("strategy") == "auto");
  CHECK(rows[0].at("step_seconds").get<double>() > 0);
  CHECK(rows[0].at("against_best") == 0);
  CHECK(rows[1].at("step_seconds").is_null());
  // The plan that trains comes first; without pins it is the automatic one.
  const auto rows_of_all =
      nlohmann::json::parse(call({"plan", "conf/demo.toml", "--compare", "--json"}).out);
  CHECK(rows_of_all.front().at("strategy") == "configured");
  CHECK(rows_of_all.front().at("step_seconds") == rows_of_all.back().at("step_seconds"));
}

TEST_CASE("plan --compare ends with 0, 3 or 2: one has a plan, one is too large, none can be") {
  CHECK(call({"plan", "conf/demo.toml", "--compare=zebra,auto"}).code == 0);
  CHECK(call({"plan", "conf/demo.toml", "--compare=zebra"}).code == 2);
  const std::vector<std::string> tiny{"plan", "conf/demo.toml", "--set",
                                      "emulation.memory_scale=1e-5"};
  for (const char* compared : {"--compare", "--compare=zebra,even", "--compare=even"}) {
    INFO(compared);
    auto arguments = tiny;
    arguments.emplace_back(compared);
    CHECK(call(arguments).code == 3);
  }
  // A schedule that some strategies cannot have takes no other row away.
  const auto rows =
      nlohmann::json::parse(call({"plan", "conf/demo.toml", "--set", "plan.schedule=interleaved",
                                  "--set", "plan.chunks=2", "--compare", "--json"})
                                .out);
  std::size_t refused = 0, planned = 0;
  for (const auto& row : rows) {
    if (row.at("refused").is_null())
      ++planned;
    else
      ++refused;
  }
  CHECK(planned >= 2);
  CHECK(refused >= 2);
}

TEST_CASE("plan --compare of pinned stages: they are the row of the configuration") {
  const auto json = [](std::vector<std::string> arguments) {
    arguments.emplace_back("--json");
    const auto answer = call(arguments);
    INFO(answer.err);
    REQUIRE(answer.code == 0);
    return nlohmann::json::parse(answer.out);
  };
  const auto rows = json({"plan", "conf/mixed_gpus_pinned.toml", "--compare=configured,auto"});
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].at("strategy") == "configured");
  CHECK(rows[0].at("step_seconds") ==
        json({"plan", "conf/mixed_gpus_pinned.toml"}).at("predicted_step_seconds"));
  CHECK(rows[0].at("step_seconds") != rows[1].at("step_seconds"));
}

TEST_CASE("plan --explain tells of every strategy, as JSON too") {
  const auto replicas = call({"plan", "conf/demo.toml", "--strategy", "hetpipe", "--explain"});
  CHECK(replicas.code == 0);
  CHECK(replicas.out.find("\nbinds: ") != std::string::npos);
  CHECK(replicas.out.find("with one more device like t4: ") != std::string::npos);
  const auto json = nlohmann::json::parse(
      call({"plan", "conf/demo.toml", "--strategy", "hetpipe", "--explain", "--json"}).out);
  CHECK(json.contains("step_seconds") != json.contains("plan"));  // replicas, or one worker
  CHECK(json.at("reasons").at("changes").size() >= 4);
  const auto refused = call({"plan", "conf/demo.toml", "--compare", "--explain"});
  CHECK(refused.code == 2);
  CHECK(refused.err.find("leave out --explain") != std::string::npos);
}

TEST_CASE("auto microbatches and schedule are chosen alike by plan, simulate and check") {
  const std::vector<std::string> open{"conf/demo.toml", "--set", "training.microbatches=auto",
                                      "--set", "plan.schedule=auto"};
  const auto with = [&open](const char* command, std::vector<std::string> more) {
    std::vector<std::string> arguments{command};
    arguments.insert(arguments.end(), open.begin(), open.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto answer = call(arguments);
    INFO(answer.err);
    REQUIRE(answer.code == 0);
    return answer.out;
  };
  const std::string text = with("plan", {});
  CHECK(text.find("\nchosen: ") != std::string::npos);
  CHECK(text.find("\nnext choice: ") != std::string::npos);
  const auto plan = nlohmann::json::parse(with("plan", {"--json"}));
  const auto fixed = nlohmann::json::parse(call({"plan", "conf/demo.toml", "--json"}).out);
  CHECK(plan.at("predicted_step_seconds") <= fixed.at("predicted_step_seconds"));
  const auto played = nlohmann::json::parse(with("simulate", {"--json"}));
  CHECK(played.at("microbatches") == plan.at("shape").at("microbatch_count"));
  CHECK(played.at("schedule") == plan.at("schedule_kind"));
  CHECK(played.at("step_seconds") == plan.at("predicted_step_seconds"));
  CHECK(with("check", {}).find("as many microbatches as `troupe plan` chooses") !=
        std::string::npos);
  const auto rows = nlohmann::json::parse(with("plan", {"--compare=configured,even", "--json"}));
  CHECK(rows[0].at("step_seconds") == plan.at("predicted_step_seconds"));
  const auto why = nlohmann::json::parse(with("plan", {"--explain", "--json"}));
  CHECK(why.at("plan") == plan);
  CHECK_FALSE(why.contains("left_open"));
}

TEST_CASE("plan --strategy places as it is told, or says why not") {
  const auto balanced = call({"plan", "conf/demo.toml", "--strategy", "memory-balanced"});
  CHECK(balanced.code == 0);
  CHECK(call({"plan", "conf/demo.toml", "--strategy", "auto"}).out ==
        call({"plan", "conf/demo.toml"}).out);
  const auto zebra = call({"plan", "conf/demo.toml", "--strategy", "zebra"});
  CHECK(zebra.code == 2);
  CHECK(zebra.err.find("no experts") != std::string::npos);
  const auto unknown = call({"plan", "conf/demo.toml", "--strategy", "evn"});
  CHECK(unknown.code == 2);
  CHECK(unknown.err.find("there are even, edgepipe") != std::string::npos);
  CHECK(call({"plan", "conf/demo.toml", "--compare=auto,evn"}).code == 2);
  const auto pinned = call({"plan", "conf/mixed_gpus_pinned.toml", "--strategy", "even"});
  CHECK(pinned.code == 2);
  CHECK(pinned.err.find("pinned") != std::string::npos);
}

TEST_CASE("plan --explain chooses what the configuration leaves open") {
  std::ifstream file(std::string(TROUPE_SOURCE_DIR) + "/conf/demo.toml");
  const std::string demo{std::istreambuf_iterator<char>(file), {}};
  CHECK(call({"plan", "conf/demo.toml", "--explain"}).out.find("left open") == std::string::npos);
  const std::string open = std::regex_replace(demo, std::regex("\nmicrobatches = [0-9]+"), "");
  REQUIRE(open != demo);
  const std::string path = std::string(TROUPE_SOURCE_DIR) + "/conf/demo.toml";
  const auto loaded = parse_config(open, path);
  REQUIRE(loaded.loaded);
  CHECK(loaded.loaded->open.microbatches);
  CHECK_FALSE(parse_config(demo, path).loaded->open.microbatches);
}

TEST_CASE("every configuration that README and help pages show with its settings is legal") {
  std::string text;
  for (const char* page : {"train", "plan", "simulate", "check"})
    text += call({page, "--help"}).out;
  text += call({"--help"}).out;
  std::ifstream readme(std::string(TROUPE_SOURCE_DIR) + "/README.md");
  text += std::string(std::istreambuf_iterator<char>(readme), {});
  std::istringstream lines(text);
  std::size_t checked = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::vector<std::string> arguments;
    for (std::string word; words >> word;) {
      if (word.starts_with("conf/") && !word.starts_with("conf/models/") && word.ends_with(".toml"))
        arguments = {"check", word};
      if (word == "--set" && !arguments.empty() && words >> word)
        arguments.insert(arguments.end(), {"--set", word});
    }
    if (line.find("troupe ") == std::string::npos || arguments.empty()) continue;
    const Outcome outcome = call(arguments);
    INFO(line << "\n" << outcome.err);
    CHECK(outcome.code == 0);
    ++checked;
  }
  CHECK(checked >= 10);
}

TEST_CASE("the configuration that README writes out is legal") {
  std::ifstream readme(std::string(TROUPE_SOURCE_DIR) + "/README.md");
  std::string toml;
  bool inside = false;
  for (std::string line; std::getline(readme, line);) {
    if (line == "    TOML") inside = false;
    if (inside) toml += line + "\n";
    if (line.ends_with("<<'TOML'")) inside = true;
  }
  // Its paths start at the root of the repository, where README lies.
  const auto outcome = parse_config(toml, std::string(TROUPE_SOURCE_DIR) + "/mine.toml");
  INFO(to_text(outcome.problems));
  REQUIRE(outcome.loaded.has_value());
  CHECK(outcome.loaded->spec.name == "mine");
}

TEST_CASE("the model that README writes out to be looked at is planned, not trained") {
  std::ifstream readme(std::string(TROUPE_SOURCE_DIR) + "/README.md");
  std::string toml;
  bool inside = false;
  for (std::string line; std::getline(readme, line);) {
    if (line == "    END") inside = false;
    if (inside) toml += line + "\n";
    if (line.ends_with("<<'END'")) inside = true;
  }
  ConfigOptions options;
  options.any_model = true;
  const auto outcome = parse_config(toml, std::string(TROUPE_SOURCE_DIR) + "/look.toml", options);
  INFO(to_text(outcome.problems));
  REQUIRE(outcome.loaded.has_value());
  CHECK(!outcome.loaded->untrained.empty());
  CHECK(PlanInputs(*outcome.loaded).plan().ok());
}

TEST_CASE("node says what is wrong with how long it shall wait") {
  const auto refused =
      call({"node", "--join", "127.0.0.1:1", "--name", "n", "--timeout", "5 parsecs"});
  CHECK(refused.code == 2);
  CHECK(refused.err.starts_with("error: --timeout: "));
  CHECK(refused.err.find("250 ms") != std::string::npos);
  CHECK(call({"node", "--join", "127.0.0.1:1", "--name", "n", "--timeout", "1 ms"}).code == 1);
}

TEST_CASE(
    "a flag that a command lacks is answered with what it has, or with the key of that name") {
  CHECK(call({"train", "conf/demo.toml", "--stepz", "3"}).err ==
        "error: troupe train has no flag --stepz; did you mean --set run.steps=...?\n");
  CHECK(call({"version", "--colour"}).err.find("has no flag --colour; it has --help") !=
        std::string::npos);
  CHECK(call({"checkpoint"}).err.find("error: troupe checkpoint --help shows how it is called\n") !=
        std::string::npos);
  CHECK(call({"train"}).err.find("error: troupe train --help shows") != std::string::npos);
}

TEST_CASE("where no checkpoint is, the text says what is there, with exit code 2") {
  const TemporaryFolder scratch;
  const std::string root = scratch.path().string();
  const auto refused = [](const std::string& folder, const std::string& why) {
    for (const auto& arguments :
         std::vector<std::vector<std::string>>{{"checkpoint", "verify", folder},
                                               {"checkpoint", "export", folder, folder + "-out"},
                                               {"generate", folder, "--prompt", "a"}}) {
      const auto answer = call(arguments);
      INFO(answer.err);
      CHECK(answer.code == 2);
      CHECK(answer.err.find(why) != std::string::npos);
    }
  };
  refused(root + "/none", "there is no folder");
  std::ofstream(root + "/file") << "x";
  refused(root + "/file", "is a file; a checkpoint is a folder");
  std::filesystem::create_directories(root + "/run/checkpoints/step-00000001");
  refused(root + "/run", "is the folder of a run; it has no complete checkpoint");
  refused(root + "/run/checkpoints", "holds several checkpoints; it has no complete checkpoint");
  refused(root + "/run/checkpoints/step-00000001", "it has no manifest");
  CHECK(call({"checkpoint", "ls", root}).out ==
        "no checkpoints in " + root + "; it holds runs: " + root + "/run\n");
}

TEST_CASE("what is misspelt is named with the nearest right thing, exit code 2") {
  CHECK(call({"trian", "c.toml"}).err ==
        "error: troupe has no command \"trian\"; did you mean train?\n");
  CHECK(call({"checkpoint", "verfy"}).err ==
        "error: troupe checkpoint has no command \"verfy\"; did you mean verify?\n");
  CHECK(call({"train", "conf/demo.toml", "--rezume"}).err ==
        "error: troupe train has no flag --rezume; did you mean --resume?\n");
  CHECK(call({"plan", "conf/demo.toml", "--jsn=1"}).err ==
        "error: troupe plan has no flag --jsn; did you mean --json?\n");
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{"trian"},
                                             {},
                                             {"train"},
                                             {"node"},
                                             {"generate", "x"},
                                             {"data", "show", "x", "--step", "0"}}) {
    const Outcome outcome = call(arguments);
    CHECK(outcome.code == 2);
    CHECK(outcome.err.rfind("error: ", 0) == 0);
    CHECK(outcome.out.empty());
  }
}

TEST_CASE("a broken configuration is refused by every command, exit code 2, nothing created") {
  const std::string file = "tests/golden/config/broken/many_problems.toml";
  for (const char* command : {"check", "plan", "train"}) {
    const Outcome outcome = call({command, file});
    CHECK(outcome.code == 2);
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 5);
    CHECK(outcome.err.find("error: " + file + ":3:9: run.steps = 0") == 0);
  }
  CHECK(call({"check", "conf/nowhere.toml"}).code == 2);
  CHECK_FALSE(std::filesystem::exists("runs/tiny"));
}

TEST_CASE("L132 no file is read that was not named, and one that is missing is an error") {
  // A configuration where others would look for one by themselves.
  const auto folder =
      std::filesystem::temp_directory_path() / ("troupe-hidden-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const auto back = std::filesystem::current_path();
  for (const char* name : {"troupe.toml", ".troupe.toml", "config.toml", "run.toml"})
    std::filesystem::copy_file("conf/cpu_only.toml", folder / name);
  std::filesystem::current_path(folder);
  for (const char* command : {"train", "plan", "check"}) {
    const Outcome unnamed = call({command});
    INFO(command << ": " << unnamed.err);
    CHECK(unnamed.code == 2);
    CHECK(unnamed.out.empty());
    const Outcome missing = call({command, "nodes.toml"});
    CHECK(missing.code == 2);
    CHECK(missing.err.find("nodes.toml") != std::string::npos);
  }
  std::filesystem::current_path(back);
  CHECK_FALSE(std::filesystem::exists(folder / "runs"));
  std::filesystem::remove_all(folder);
}

TEST_CASE("check accepts a good configuration and overrides") {
  const Outcome outcome =
      call({"check", "conf/cpu_only.toml", "--set", "run.steps=20", "--set", "run.seed=3"});
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(outcome.out.find("conf/cpu_only.toml: holds") == 0);
  CHECK(call({"check", "conf/cpu_only.toml", "--set", "run.steps=no"}).err ==
        "error: --set run.steps=no: run.steps is text, must be a whole number from 1 to "
        "1000000000000; write for example steps = 100\n");
}

TEST_CASE("L146 explain knows every key and names the nearest of others") {
  CHECK(call({"explain"}).out == explain_all());
  CHECK(call({"explain", "run.steps"}).out.find("run.steps\n") == 0);
  const Outcome unknown = call({"explain", "run.stpes"});
  CHECK(unknown.code == 2);
  CHECK(unknown.err == "error: there is no key \"run.stpes\"; did you mean \"steps\"?\n");
}

TEST_CASE("output that cannot be written is a failure") {
  std::ofstream full("/dev/full");
  std::ostringstream err;
  CHECK(run_program({"version"}, {full, err, false}) == 1);
  CHECK(err.str() == "error: the output cannot be written; the disk may be full\n");
}

TEST_CASE("version as text and as JSON") {
  CHECK(call({"version"}).out.find("troupe ") == 0);
  const auto json = nlohmann::json::parse(call({"version", "--json"}).out);
  CHECK(json["program"] == "troupe");
  CHECK_FALSE(json["version"].get<std::string>().empty());
}

}  // namespace troupe
