#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "apps/program.h"
#include "apps/run_config.h"
#include "tests/support/catch.h"
#include "tests/support/program_call.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temporary_folder.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> lines_of(const fs::path& path) {
  std::ifstream file(path);
  std::vector<std::string> out;
  for (std::string line; std::getline(file, line);) out.push_back(line);
  return out;
}

/// loss_bits and state_hash of every step.
std::vector<std::string> bits_of(const fs::path& run) {
  std::vector<std::string> out;
  for (const std::string& line : lines_of(run / "metrics.jsonl")) {
    const auto row = nlohmann::json::parse(line);
    if (row.contains("loss_bits"))
      out.push_back(row["loss_bits"].get<std::string>() + " " +
                    row["state_hash"].get<std::string>());
  }
  return out;
}

std::vector<std::string> train(const fs::path& folder, const std::string& name, int steps) {
  return {"train",
          "tests/golden/config/good/smallest.toml",
          "--quiet",
          "--set",
          "run.folder=" + folder.string(),
          "--set",
          "run.name=" + name,
          "--set",
          "run.steps=" + std::to_string(steps),
          "--set",
          "learning_rate.total_steps=6"};
}

}  // namespace

TEST_CASE("a run leaves its folder behind, and a resumed one the same bits") {
  const TemporaryFolder temporary;
  const Outcome whole = call(train(temporary.path(), "whole", 6));
  INFO(whole.err);
  REQUIRE(whole.code == 0);
  const fs::path run = temporary.path() / "whole";
  for (const char* file :
       {"config.toml", "plan.json", "metrics.jsonl", "events.jsonl", "trace.json", "report.html"}) {
    INFO(file);
    CHECK(fs::file_size(run / file) > 0);
  }
  CHECK(load_config((run / "config.toml").string()).ok());
  CHECK(bits_of(run).size() == 6);
  const auto trace = nlohmann::json::parse(std::ifstream(run / "trace.json"));
  std::vector<std::string> lanes;
  for (const auto& event : trace.at("traceEvents"))
    if (event.at("name") == "thread_name") lanes.push_back(event.at("args").at("name"));
  REQUIRE_FALSE(lanes.empty());
  CHECK(lanes.front().starts_with("cpu"));  // its name, not "d0"

  // The same under another plan, in two parts.
  auto part = train(temporary.path(), "parts", 3);
  REQUIRE(call(part).code == 0);
  part = train(temporary.path(), "parts", 6);
  for (const char* more : {"--set", "plan.plan=pinned", "--set", "plan.cuts=[2]", "--resume"})
    part.emplace_back(more);
  const Outcome resumed = call(part);
  INFO(resumed.err);
  REQUIRE(resumed.code == 0);
  CHECK(bits_of(temporary.path() / "parts") == bits_of(run));

  // Who has a folder already is not overwritten.
  const Outcome again = call(train(temporary.path(), "whole", 6));
  CHECK(again.code == 2);
  CHECK(again.err.find("holds a run already") != std::string::npos);

  const auto listed = nlohmann::json::parse(call({"checkpoint", "ls", run.string(), "--json"}).out);
  REQUIRE(listed.size() == 1);
  CHECK(listed[0]["step"] == 6);
  const std::string checkpoint = listed[0]["folder"];
  CHECK(call({"checkpoint", "verify", checkpoint}).code == 0);
  const Outcome folder = call({"generate", run.string(), "--prompt", "It was"});
  CHECK(folder.code == 2);
  CHECK(folder.err.find("its newest checkpoint is " + checkpoint) != std::string::npos);
  const Outcome text =
      call({"generate", checkpoint, "--prompt", "It was", "--max-new-tokens", "5"});
  CHECK(text.code == 0);
  CHECK(text.out.rfind("It was", 0) == 0);
  const Outcome ids = call({"generate", checkpoint, "--prompt-ids", "73,116", "--max-new-tokens",
                            "5", "--print", "ids"});
  CHECK(std::count(ids.out.begin(), ids.out.end(), ',') == 4);
  CHECK(call({"generate", checkpoint, "--prompt-ids", "73,x"}).code == 2);
}

TEST_CASE("a run keeps the microbatches and the schedule that its plan chose") {
  const TemporaryFolder temporary;
  auto arguments = train(temporary.path(), "open", 2);
  for (const char* more : {"--set", "training.microbatches=auto", "--set", "plan.schedule=auto"})
    arguments.emplace_back(more);
  const Outcome open = call(arguments);
  INFO(open.err);
  REQUIRE(open.code == 0);
  const fs::path run = temporary.path() / "open";
  const auto kept = load_config((run / "config.toml").string());
  REQUIRE(kept.ok());
  CHECK_FALSE(kept->spec.plan.choose_microbatches);
  CHECK_FALSE(kept->spec.plan.choose_schedule);
  const auto plan = nlohmann::json::parse(std::ifstream(run / "plan.json"));
  CHECK(plan.at("shape").at("microbatch_count") == kept->spec.shape.microbatch_count);
  CHECK(plan.at("schedule_kind") == to_string(kept->spec.plan.schedule));
  // The same numbers, written: the same bits.
  auto written = train(temporary.path(), "written", 2);
  written.insert(written.end(), {"--set", "training.microbatches=" +
                                              std::to_string(kept->spec.shape.microbatch_count)});
  REQUIRE(call(written).code == 0);
  CHECK(bits_of(temporary.path() / "written") == bits_of(run));
}

TEST_CASE("a resumed run keeps the microbatches of the run it goes on from") {
  const TemporaryFolder temporary;
  REQUIRE(call(train(temporary.path(), "whole", 4)).code == 0);
  REQUIRE(call(train(temporary.path(), "parts", 2)).code == 0);
  auto arguments = train(temporary.path(), "parts", 4);
  for (const char* more : {"--set", "training.microbatches=auto", "--resume"})
    arguments.emplace_back(more);
  const Outcome resumed = call(arguments);
  INFO(resumed.err);
  REQUIRE(resumed.code == 0);
  CHECK(resumed.err.find("microbatches: 4, as in ") != std::string::npos);
  CHECK(bits_of(temporary.path() / "parts") == bits_of(temporary.path() / "whole"));
  // A checkpoint that lies in no run does not say how many there were.
  const fs::path moved = temporary.path() / "moved";
  fs::copy(temporary.path() / "whole" / "checkpoints" / "step-00000004", moved,
           fs::copy_options::recursive);
  arguments = train(temporary.path(), "other", 6);
  for (const std::string& more : {std::string("--set"), std::string("training.microbatches=auto"),
                                  std::string("--set"), "checkpoint.resume_from=" + moved.string()})
    arguments.push_back(more);
  const Outcome anew = call(arguments);
  INFO(anew.err);
  CHECK(anew.code == 0);
  CHECK(anew.err.find("chosen anew") != std::string::npos);
}

TEST_CASE("a plan that does not fit is refused with exit code 3, and nothing is created") {
  const TemporaryFolder temporary;
  auto arguments = train(temporary.path(), "large", 2);
  for (const char* more :
       {"--set", "node.0.device.0.memory=20 KiB", "--set", "node.0.device.1.memory=20 KiB"})
    arguments.emplace_back(more);
  const Outcome outcome = call(arguments);
  INFO(outcome.err);
  CHECK(outcome.code == 3);
  CHECK(outcome.err.find("does not fit") != std::string::npos);
  CHECK_FALSE(fs::exists(temporary.path() / "large"));
  arguments[0] = "plan";
  arguments.erase(arguments.begin() + 2);  // --quiet
  CHECK(call(arguments).code == 3);
}

TEST_CASE("a model far beyond the caps is refused before any device is measured") {
  const TemporaryFolder temporary;
  auto arguments = train(temporary.path(), "huge", 2);
  arguments.insert(arguments.end(), {"--set", "model.width=1048576"});
  const Outcome outcome = call(arguments);  // measured, it would need terabytes
  INFO(outcome.err);
  CHECK(outcome.code == 3);
  CHECK(outcome.err.find("cpu0 needs ") != std::string::npos);
  CHECK_FALSE(fs::exists(temporary.path() / "huge"));
}

TEST_CASE(
    "a damaged newest checkpoint is named and kept, and the run goes on from the one before") {
  const TemporaryFolder temporary;
  const fs::path run = temporary.path() / "run";
  REQUIRE(call(train(temporary.path(), "whole", 6)).code == 0);
  auto arguments = train(temporary.path(), "run", 4);
  arguments.insert(arguments.end(), {"--set", "checkpoint.every_steps=2"});
  REQUIRE(call(arguments).code == 0);
  const fs::path newest = run / "checkpoints" / "step-00000004";
  fs::path shard;
  for (const auto& file : fs::directory_iterator(newest))
    if (file.path().extension() == ".safetensors") shard = file.path();
  {
    std::fstream bytes(shard, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(-1, std::ios::end);
    const char last = static_cast<char>(bytes.get());
    bytes.seekp(-1, std::ios::end);
    bytes.put(static_cast<char>(last ^ 1));
  }
  CHECK(call({"checkpoint", "ls", run.string()}).code == 0);
  CHECK(call({"checkpoint", "ls", run.string(), "--verify"}).code == 1);

  arguments = train(temporary.path(), "run", 6);
  arguments.emplace_back("--resume");
  const Outcome resumed = call(arguments);
  INFO(resumed.err);
  CHECK(resumed.code == 0);
  for (const std::string& part :
       {shard.string(), "going on from " + (run / "checkpoints" / "step-00000002").string(),
        newest.string() + ".damaged"})
    CHECK(resumed.err.find(part) != std::string::npos);
  CHECK(fs::exists(newest.string() + ".damaged/" + shard.filename().string()));
  CHECK(bits_of(run) == bits_of(temporary.path() / "whole"));
}

TEST_CASE("a run that goes on with other data says so") {
  const TemporaryFolder temporary;
  REQUIRE(call(train(temporary.path(), "run", 2)).code == 0);
  auto arguments = train(temporary.path(), "run", 3);
  arguments.emplace_back("--resume");
  const Outcome same = call(arguments);
  INFO(same.err);
  CHECK(same.code == 0);
  CHECK(same.err.find("warning") == std::string::npos);
  arguments = train(temporary.path(), "run", 4);
  arguments.insert(arguments.end(), {"--set", "data.validation_fraction=0.3", "--set",
                                     "training.compute=bf16", "--resume"});
  const Outcome other = call(arguments);
  INFO(other.err);
  CHECK(other.code == 0);
  CHECK(other.err.find("config.toml: data.validation_fraction = 0.3, was ") != std::string::npos);
  CHECK(other.err.find("; training.compute = bf16, was f32; from here on") != std::string::npos);
  // More steps without a word about where the learning rate's fall ends: it ends elsewhere.
  arguments = train(temporary.path(), "run", 5);
  std::erase(arguments, "learning_rate.total_steps=6");
  arguments.pop_back();
  arguments.emplace_back("--resume");
  const Outcome longer = call(arguments);
  INFO(longer.err);
  CHECK(longer.code == 0);
  CHECK(longer.err.find("learning_rate.total_steps = 5, was 6") != std::string::npos);
}

TEST_CASE("a checkpoint of another model is refused with the keys that differ") {
  const TemporaryFolder temporary;
  REQUIRE(call(train(temporary.path(), "run", 2)).code == 0);
  auto arguments = train(temporary.path(), "run", 3);
  arguments.insert(arguments.end(), {"--set", "model.tied=false", "--resume"});
  const Outcome other = call(arguments);
  CHECK(other.code == 2);
  CHECK(other.err.find("step-00000002 holds another model than the configuration: "
                       "model.tied = false, was true\n") != std::string::npos);
}

TEST_CASE("a run that goes on with other bytes in the same file says so; an equal copy is fine") {
  const TemporaryFolder temporary;
  const fs::path text = temporary.path() / "text.txt";
  const auto with = [&](int steps, const fs::path& file) {
    auto arguments = train(temporary.path(), "run", steps);
    arguments.insert(arguments.end(), {"--set", "data.files=[\"" + file.string() + "\"]"});
    if (steps > 2) arguments.emplace_back("--resume");
    std::erase(arguments, "--quiet");
    return call(arguments);
  };
  std::ofstream(text) << std::string(4000, 'a');
  REQUIRE(with(2, text).code == 0);
  fs::copy_file(text, temporary.path() / "copy.txt");
  const std::string warning = "was trained on other data than " + text.string() + " hold";
  const Outcome copy = with(3, temporary.path() / "copy.txt");
  INFO(copy.err);
  CHECK(copy.code == 0);
  CHECK(copy.err.find("warning") == std::string::npos);
  std::fstream(text, std::ios::in | std::ios::out).seekp(2000).put('b');
  const Outcome other = with(4, text);
  INFO(other.err);
  CHECK(other.code == 0);
  CHECK(other.err.find("warning: ") != std::string::npos);
  CHECK(other.err.find(warning) != std::string::npos);
  const auto events = lines_of(temporary.path() / "run" / "events.jsonl");
  CHECK(std::count_if(events.begin(), events.end(), [](const std::string& line) {
          return line.find("data_changed") != std::string::npos;
        }) == 1);
}

TEST_CASE("a run that saved nothing is no dead end") {
  const TemporaryFolder temporary;
  const fs::path run = temporary.path() / "run";
  REQUIRE(call(train(temporary.path(), "run", 2)).code == 0);
  fs::remove_all(run / "checkpoints");
  auto arguments = train(temporary.path(), "run", 2);
  Outcome refused = call(arguments);
  CHECK(refused.code == 2);
  CHECK(refused.err.find("or remove it") != std::string::npos);
  arguments.emplace_back("--resume");
  refused = call(arguments);
  CHECK(refused.code == 2);
  CHECK(refused.err.find("has no complete checkpoint; to begin again, take another name") !=
        std::string::npos);
  CHECK(refused.err.find("remove " + run.string()) != std::string::npos);
}

TEST_CASE("generate takes no number for a seed or a temperature that is none") {
  for (const char* temperature : {"nan", "-nan", "inf", "-1", "101", "warm"}) {
    INFO(temperature);
    const auto refused = call({"generate", "x", "--prompt", "a", "--temperature", temperature});
    CHECK(refused.code == 2);
    CHECK(refused.err.find("--temperature") != std::string::npos);
  }
  for (const char* seed : {"-1", "18446744073709551616", "1.5", "x"}) {
    INFO(seed);
    const auto refused = call({"generate", "x", "--prompt", "a", "--seed", seed});
    CHECK(refused.code == 2);
    CHECK(refused.err.find("--seed") != std::string::npos);
  }
  // These are seeds; the folder is what is wrong.
  for (const char* seed : {"0", "18446744073709551615"})
    CHECK(call({"generate", "x", "--prompt", "a", "--seed", seed}).err.find("seed") ==
          std::string::npos);
}

TEST_CASE("data show prints the tokens of a step, the same ones each time") {
  const TemporaryFolder temporary;
  const std::vector<std::string> arguments{
      "data",   "show",  "tests/golden/config/good/smallest.toml", "--step", "3",
      "--json", "--set", "run.folder=" + temporary.path().string()};
  const Outcome first = call(arguments);
  INFO(first.err);
  REQUIRE(first.code == 0);
  const auto json = nlohmann::json::parse(first.out);
  CHECK(json["step"] == 3);
  REQUIRE(json["microbatches"].size() == 4);
  const auto& data = json["microbatches"][0];
  REQUIRE(data["tokens"].size() == 2);  // 8 sequences in 4 microbatches
  REQUIRE(data["tokens"][0].size() == 16);
  CHECK(data["tokens"][0][1] == data["targets"][0][0]);
  CHECK(call(arguments).out == first.out);
}

TEST_CASE("a drift from the plan is said on the screen, in the events and in the report") {
  const TemporaryFolder temporary;
  std::vector<std::string> arguments = train(temporary.path(), "drift", 14);
  for (const char* more :
       {"node.0.device.0.kind=emulated", "node.0.device.0.model=v100_pcie_16",
        "emulation.time_scale=3000", "emulation.launch=20 ns", "plan.plan=pinned", "plan.cuts=[5]",
        "emulation.disturbance=[{device = \"cpu0\", factor = 2.0}]"}) {
    arguments.emplace_back("--set");
    arguments.emplace_back(more);
  }
  const Outcome run = call(arguments);
  INFO(run.err);
  REQUIRE(run.code == 0);
  CHECK(run.err.find("warning: steps take ") != std::string::npos);
  // Under the thread sanitizer messages take longer than the modelled actions.
  if (!test::thread_sanitizer)
    CHECK(run.err.find("arithmetic of stage 0 on cpu0 (d0)") != std::string::npos);
  const auto events = lines_of(temporary.path() / "drift" / "events.jsonl");
  CHECK(std::count_if(events.begin(), events.end(), [](const std::string& line) {
          return nlohmann::json::parse(line)["event"] == "drift";
        }) == 1);
  std::ifstream report(temporary.path() / "drift" / "report.html");
  const std::string page{std::istreambuf_iterator<char>(report), {}};
  CHECK(page.find("<p class=\"warning\">After step ") != std::string::npos);
}

}  // namespace troupe
