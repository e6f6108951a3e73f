#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/plan_page.h"
#include "apps/program.h"
#include "apps/simulation_tables.h"
#include "apps/timeline_svg.h"
#include "apps/what_if_arguments.h"
#include "planner/schedules.h"
#include "tests/support/catch.h"
#include "tests/support/program_call.h"
#include "tests/support/temporary_folder.h"

namespace troupe {
namespace {

/// Two devices, 1F1B, F 1 s, B 2 s, a hop 0.5 s, N and U nothing.
SimulationCase two_stages(std::uint32_t microbatches) {
  SimulationCase one;
  one.source = "two.toml";
  one.schedule_name = "1f1b";
  one.cluster.nodes.push_back({"n", false});
  for (const char* name : {"fast", "slow"}) {
    DeviceSpec device;
    device.name = name;
    device.memory = 4096;
    one.cluster.devices.push_back(device);
  }
  one.shape.microbatch_count = microbatches;
  one.stages = {{{0, 2}, DeviceId{0}}, {{2, 3}, DeviceId{1}}};
  one.schedule = make_schedule(ScheduleKind::one_f_one_b, looped_stages(2, microbatches)).value();
  one.memory = {{1000, 1000, 1000, 0, 0, 0}, {100, 100, 100, 100, 100, 12}};
  one.seconds = [](const WhatIf&) -> Result<ActionSeconds> {
    return ActionSeconds([](const Action& action) -> Seconds {
      if (action.op == Op::forward) return 1;
      if (action.op == Op::backward) return 2;
      return action.op == Op::norm || action.op == Op::update ? 0 : 0.5;
    });
  };
  return one;
}

SimulatedStep played(const SimulationCase& one, const WhatIf& what_if = {}) {
  return simulate_case(one, what_if).value();
}

}  // namespace

TEST_CASE("simulate: the text of a step, by hand") {
  // fast: F 0-2, waits for F1.0 and B1.0 (1.5-4.5) and a hop, B 5-7, waits for B1.1 (5.5-7.5) and
  // a hop, B 8-10.
  const SimulationCase one = two_stages(2);
  CHECK(simulation_text(one, played(one), {}) ==
        "two.toml: schedule 1f1b, 2 microbatches of 1 sequence\n"
        "\n"
        "step 10.0 s, bubble 40.0 %, exposed communication 1.00 s (10.0 %)\n"
        "\n"
        "device  layers    busy    fill  stage after    link   drain  utilisation  exposed  peak "
        "memory       cap\n"
        "fast    0-1     6.00 s       -       3.00 s  1.00 s       -       60.0 %   1.00 s     "
        "2.93 KiB  4.00 KiB\n"
        "slow    2       6.00 s  1.50 s            -       -  2.50 s       60.0 %   1.00 s        "
        "512 B  4.00 KiB\n");
}

TEST_CASE("simulate: a device that stops is named with those that wait for it") {
  const SimulationCase one = two_stages(2);
  WhatIf what_if;
  what_if.stops[1] = 2;
  const std::string text =
      simulation_text(one, played(one, what_if), what_if_lines(what_if, one.cluster));
  INFO(text);
  CHECK(text.find("what if: slow stops at 2.00 s\n"
                  "\n"
                  "the step does not end; the last action ends at 2.00 s (undisturbed 10.0 s)\n"
                  "  fast: B0.0 <- XB1.0 (slow to fast) <- B1.0 (slow) behind F1.0, which never "
                  "ends\n"
                  "  culprit: slow, which stops at 2.00 s\n") != std::string::npos);
}

TEST_CASE("simulate: JSON has every reason, and they add up") {
  const SimulationCase one = two_stages(3);
  const auto json = simulation_json(one, played(one), {});
  CHECK(json["ends"] == true);
  for (const auto& device : json["devices"]) {
    double sum = device["busy_seconds"];
    std::size_t reasons = 0;
    for (const auto& [key, value] : device.items())
      if (key.starts_with("idle_")) {
        sum += value.get<double>();
        ++reasons;
      }
    CHECK(reasons == idle_reason_count);
    CHECK(sum == json["step_seconds"].get<double>());
  }
}

TEST_CASE("simulate: schedules in one table") {
  const SimulationCase one = two_stages(2);
  SimulationCase other = two_stages(4);
  other.source = "four.toml";
  other.memory[1].weights = 5000;
  CHECK(
      comparison_table({one, other}, {played(one), played(other)}).to_text() ==
      "configuration  schedule    step  against the first  bubble  exposed  fullest device  "
      "fits\n"
      "two.toml       1f1b      10.0 s             +0.0 %  40.0 %   1.00 s          73.2 %  yes\n"
      "four.toml      1f1b      17.0 s            +70.0 %  29.4 %   1.50 s         132.1 %  no\n");
}

TEST_CASE("simulate: what is wrong with a what-if is named with the nearest right thing") {
  const ClusterSpec cluster = two_stages(2).cluster;
  WhatIfArguments arguments;
  arguments.slow = {"fats=2", "slow=0", "slow"};
  arguments.links = {"fast=latency:1 ms", "fast>slow=latncy:1 ms", "fast>fast=loss:0.5",
                     "fast>slow=loss:2", "fast>slow=bandwidth:3"};
  arguments.stops = {"slow=3"};
  arguments.jitter = 2;
  const auto refused = read_what_if(arguments, cluster);
  REQUIRE_FALSE(refused.ok());
  const std::string& text = refused.error().text;
  INFO(text);
  for (const char* part : {"--slow fats=2: there is no device \"fats\"; nearest: fast",
                           "--slow slow=0: a factor above", "--slow slow: a factor above",
                           "--link fast=latency:1 ms: a link is written A>B", "nearest: latency",
                           "both ends are the same device", "loss must be from 0 to 1",
                           "bandwidth: ", "--stop slow=3: ", "--jitter 2: must be from 0 to 1"})
    CHECK(text.find(part) != std::string::npos);
  WhatIfArguments twice;
  twice.slow = {"slow=2", "slow=3"};
  twice.stops = {"fast=1 s", "fast=2 s"};
  twice.links = {"fast>slow=loss:0.5,loss:0.25", "slow>fast=loss:0.5", "slow>fast=loss:0.5"};
  const auto contrary = read_what_if(twice, cluster);
  REQUIRE_FALSE(contrary.ok());
  CHECK(contrary.error().text ==
        "--slow slow=3: slow has a factor already\n"
        "--link fast>slow=loss:0.5,loss:0.25: loss stands here twice\n"
        "--link slow>fast=loss:0.5: this link has a loss already\n"
        "--stop fast=2 s: fast stops at another time already");
  WhatIfArguments apart;
  apart.links = {"fast>slow=loss:0.25", "fast>slow=latency:1 ms"};
  const auto joined = read_what_if(apart, cluster);
  REQUIRE(joined.ok());
  REQUIRE(joined->links.size() == 1);
  CHECK(joined->links[0].loss == 0.25);
  CHECK(joined->links[0].latency == 1e-3);
  WhatIfArguments right;
  right.slow = {"slow=2.5"};
  right.links = {"fast>slow=latency:1 ms,bandwidth:2 GB/s,loss:0.25"};
  right.stops = {"fast=3 s"};
  right.jitter = 0.1;
  right.seed = 7;
  const auto read = read_what_if(right, cluster);
  REQUIRE(read.ok());
  CHECK(what_if_lines(*read, cluster) ==
        std::vector<std::string>{"slow takes 2.5 times as long",
                                 "fast to slow: latency 1.00 ms, bandwidth 2.00 GB/s, 0.25 of the "
                                 "attempts lost",
                                 "fast stops at 3.00 s", "times vary by up to 10 %, seed 7"});
}

TEST_CASE("simulate: the program on a configuration, on its plan, and what it refuses") {
  const TemporaryFolder folder;
  const std::string plan = (folder / "plan.json").string();
  const std::string svg = (folder / "step.svg").string();
  const std::string trace = (folder / "trace.json").string();
  const auto direct =
      call({"simulate", "conf/demo.toml", "--text", "--svg", svg, "--trace", trace});
  INFO(direct.err);
  REQUIRE(direct.code == 0);
  CHECK(direct.out.find("\nstep ") != std::string::npos);
  CHECK(direct.out.find("v100 to t4") != std::string::npos);
  CHECK(content_of(svg).starts_with("<svg xmlns="));
  const auto traced = nlohmann::json::parse(content_of(trace));
  CHECK(traced.at("traceEvents").at(1).at("args").at("name") == "v100");

  std::ofstream(plan) << call({"plan", "conf/demo.toml", "--json"}).out;
  const auto from_plan = call({"simulate", plan, "--json"});
  REQUIRE(from_plan.code == 0);
  const auto json = nlohmann::json::parse(from_plan.out);
  const auto first = nlohmann::json::parse(call({"simulate", "conf/demo.toml", "--json"}).out);
  CHECK(json["step_seconds"].get<double>() ==
        Approx(first["step_seconds"].get<double>()).epsilon(1e-9));
  const auto slower = call({"simulate", plan, "--json", "--slow", "t4=2"});
  CHECK(nlohmann::json::parse(slower.out)["step_seconds"] > json["step_seconds"]);

  CHECK(call({"simulate", plan, "--schedule", "gpipe"}).code == 2);
  CHECK(call({"simulate", plan, "--set", "run.steps=2"}).code == 2);
  const auto unknown = call({"simulate", "conf/demo.toml", "--schedule", "zb-h3"});
  CHECK(unknown.code == 2);
  CHECK(unknown.err.find("nearest: zb-h") != std::string::npos);
  CHECK(call({"simulate", "conf/demo.toml", "--slow", "t5=2"}).err.find("nearest: t4") !=
        std::string::npos);
  CHECK(call({"simulate", (folder / "none.json").string()}).code == 2);
  std::ofstream(plan) << "{}";
  CHECK(call({"simulate", plan}).code == 2);
  CHECK(call({"simulate", "conf/demo.toml", "--set", "emulation.memory_scale=0.0001"}).code == 3);
}

TEST_CASE("simulate: every schedule that has a name plays on the demo's devices or says why not") {
  std::vector<std::string> arguments{"simulate", "conf/demo.toml", "--json"};
  // chimera and dualpipe need an even number of devices; the demo has three.
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1", "1f1b-flush", "1f1b-2bw",
                           "zb-h2", "zb-1p", "zb-2p", "zb-v", "breadth-first", "layered"})
    arguments.insert(arguments.end(), {"--schedule", name});
  arguments.insert(arguments.end(), {"--set", "emulation.memory_scale=0.01"});
  const auto all = call(arguments);
  INFO(all.err);
  REQUIRE(all.code == 0);
  const auto list = nlohmann::json::parse(all.out);
  REQUIRE(list.size() == 12);
  for (const auto& one : list) {
    INFO(one.dump());
    CHECK(one["ends"] == true);
    CHECK(one["step_seconds"] > 0);
    CHECK(one["bubble"] >= 0);
    CHECK(one["bubble"] < 1);
  }
  const auto odd = call({"simulate", "conf/demo.toml", "--schedule", "chimera"});
  CHECK(odd.code == 2);
  CHECK(odd.err.find("schedule \"chimera\"") != std::string::npos);
}

TEST_CASE("simulate: of several schedules, one that cannot be played has a row with why") {
  const std::vector<std::string> roomy{"simulate", "conf/demo.toml", "--set",
                                       "emulation.memory_scale=0.01"};
  const auto with = [](std::vector<std::string> arguments, const std::vector<std::string>& names,
                       bool json) {
    for (const std::string& name : names) arguments.insert(arguments.end(), {"--schedule", name});
    if (json) arguments.emplace_back("--json");
    return call(arguments);
  };
  const auto text = with(roomy, {"chimera", "1f1b"}, false);
  INFO(text.out << text.err);
  CHECK(text.code == 0);
  CHECK(text.err.empty());
  CHECK(text.out.find("not played because") != std::string::npos);
  CHECK(text.out.find("schedule \"chimera\"") != std::string::npos);
  const auto list = nlohmann::json::parse(with(roomy, {"chimera", "1f1b"}, true).out);
  REQUIRE(list.size() == 2);
  CHECK(list[0].at("schedule") == "1f1b");
  CHECK(list[1].at("schedule") == "chimera");
  CHECK(list[1].at("fits").is_null());
  CHECK(with(roomy, {"chimera", "dualpipe"}, false).code == 2);
  CHECK(with({"simulate", "conf/demo.toml", "--set", "emulation.memory_scale=0.0001"},
             {"1f1b", "gpipe"}, false)
            .code == 3);
  // A name that is none is a mistake, not a row.
  CHECK(with(roomy, {"1f1b", "zb-h3"}, false).code == 2);
}

TEST_CASE("simulate: what is refused leaves no drawing, and files of no plan are named") {
  const TemporaryFolder folder;
  const std::string svg = (folder / "step.svg").string();
  const std::string trace = (folder / "trace.json").string();
  // Nothing ends, so that there is nothing to draw; nothing fits; the second file cannot be
  // written.
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"--stop", "v100=0 s", "--stop", "t4=0 s", "--stop", "rtx3090=0 s", "--svg", svg},
           {"--set", "emulation.memory_scale=0.0001", "--svg", svg},
           {"--schedule", "1f1b-2bw", "--set", "emulation.memory_scale=0.0007", "--svg", svg},
           {"--svg", "/nowhere/step.svg"}}) {
    std::vector<std::string> all{"simulate", "conf/demo.toml", "--trace", trace};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const auto refused = call(all);
    INFO(refused.err);
    CHECK(refused.code != 0);
    CHECK_FALSE(std::filesystem::exists(svg));
    CHECK_FALSE(std::filesystem::exists(trace));
  }
  const std::string file = (folder / "other.json").string();
  const auto refusal = [&](const std::string& content) {
    std::ofstream(file) << content;
    const auto answer = call({"simulate", file});
    CHECK(answer.code == 2);
    return answer.err;
  };
  CHECK(refusal("{\"step_seconds\": 1, \"workers\": []}").find("priced without a schedule") !=
        std::string::npos);
  CHECK(refusal("{\"plan\": {}, \"reasons\": {}}").find("plan --json without --explain") !=
        std::string::npos);
  CHECK(refusal("[]").find("a table of several") != std::string::npos);
  const auto two = call({"simulate", "conf/demo.toml", "--schedule", "interleaved", "--set",
                         "emulation.memory_scale=0.01"});
  CHECK(two.code == 0);
  CHECK(two.out.find("2 stages a device, as plan.chunks says nothing else") != std::string::npos);
}

TEST_CASE("L024 a device that slows down is the one that the others wait for") {
  const SimulationCase one = two_stages(8);
  WhatIf what_if;
  what_if.slow[1] = 1.3;
  const SimulatedStep before = played(one);
  const SimulatedStep after = played(one, what_if);
  CHECK(after.use[0].idle_for(IdleReason::stage_after) >
        before.use[0].idle_for(IdleReason::stage_after));
  CHECK(after.use[1].busy == Approx(1.3 * before.use[1].busy));
  CHECK(after.seconds > before.seconds);
}

TEST_CASE("plan --html: one page, nothing from elsewhere, every schedule") {
  const TemporaryFolder folder;
  const std::string file = (folder / "plans.html").string();
  const auto made =
      call({"plan", "conf/demo.toml", "--html", file, "--set", "emulation.memory_scale=0.01"});
  INFO(made.err);
  REQUIRE(made.code == 0);
  const std::string page = content_of(file);
  for (const char* part : {"the plan", "runner-up", "schedule gpipe", "schedule interleaved",
                           "schedule zb-h1", "aria-label=\"Timeline\"", "aria-label=\"Memory\""})
    CHECK(page.find(part) != std::string::npos);
  for (const char* part : {"http://", "https://", "<script", "<link", "@import", "src="})
    CHECK(page.find(part) == std::string::npos);
  // What is read is never written over, and no two outputs share a file.
  const std::string before = file + ".toml";
  std::filesystem::copy_file("conf/demo.toml", before);
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"plan", before, "--html", before},
           {"simulate", before, "--svg", before},
           {"simulate", before, "--trace", before},
           {"simulate", before, "--svg", file + "x", "--trace", file + "x"}}) {
    const auto answer = call(arguments);
    INFO(answer.err);
    CHECK(answer.code == 2);
    CHECK(std::filesystem::file_size(before) == std::filesystem::file_size("conf/demo.toml"));
  }
  CHECK_FALSE(std::filesystem::exists(file + "x"));
  const auto refused = call({"plan", "conf/demo.toml", "--html", "/nowhere/plans.html"});
  CHECK(refused.code == 1);
  CHECK(refused.err == "error: /nowhere/plans.html: cannot be written\n");
}

}  // namespace troupe
