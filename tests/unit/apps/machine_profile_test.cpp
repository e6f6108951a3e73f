#include "apps/machine_profile.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/program.h"
#include "apps/run_config.h"
#include "devices/timing.h"
#include "tests/support/catch.h"
#include "tests/support/program_call.h"
#include "tests/support/temporary_folder.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

MachineProfile small_profile() {
  MachineProfile profile;
  profile.source = "troupe profile on \"here\"";
  ProfiledCpu cpu{"threads_2", "a processor", 2, 8000000000, {}, {}};
  cpu.reached.f32 = {100e9, 40e9, 10e9};
  cpu.reached.bf16 = {200e9, 50e9, 20e9};
  cpu.reached.rates = {100e9, 200e9, 5e9, 12e9, 3e-6, 0};
  profile.cpus.push_back(cpu);
  profile.links.push_back({"in_process", "copies", {2e-6, 6e9}});
  profile.links.push_back({"between_processes", "loopback", {80e-6, 2e9}});
  profile.disks.push_back({"disk_1", "/data", 1.5e9, 0.5e9, 100e-6});
  return profile;
}

std::vector<std::string> problems_of(const std::string& text) {
  std::vector<ConfigProblem> problems;
  (void)parse_machine_profile(text, "p.toml", problems);
  std::vector<std::string> out;
  for (const ConfigProblem& problem : problems) out.push_back(to_string(problem));
  return out;
}

std::string with(const std::string& from, const std::string& to) {
  std::string text = to_toml(small_profile());
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

/// smallest.toml with a profile of `profile` and two threads on the first device.
std::vector<std::string> plan_with(const fs::path& profile) {
  return {"plan",  "tests/golden/config/good/smallest.toml",
          "--set", "cluster.profile=" + profile.string(),
          "--set", "node.0.device.0.threads=2",
          "--set", "node.0.device.1.threads=2"};
}

}  // namespace

TEST_CASE("a profile reads back as it was written") {
  const std::string text = to_toml(small_profile());
  std::vector<ConfigProblem> problems;
  const MachineProfile read = parse_machine_profile(text, "p.toml", problems);
  REQUIRE(problems.empty());
  CHECK(to_toml(read) == text);
  REQUIRE(read.cpu(2) != nullptr);
  CHECK(read.cpu(1) == nullptr);
  CHECK(read.cpu(2)->memory == 8000000000);
  CHECK(read.cpu(2)->reached.rates.matmul_bf16 == Approx(200e9));
  CHECK(read.cpu(2)->reached.f32.thin == Approx(10e9));
  CHECK(read.cpu(2)->reached.rates.launch == Approx(3e-6));
  REQUIRE(read.link("between_processes") != nullptr);
  CHECK(read.link("between_processes")->reached.bandwidth == Approx(2e9));
  REQUIRE(read.disks.size() == 1);
  CHECK(read.disks[0].write == Approx(0.5e9));
  CHECK(nlohmann::json::parse(to_json(read))["disk"]["disk_1"]["latency_us"] == Approx(100));
}

TEST_CASE("a damaged profile is refused with places and the nearest right thing") {
  CHECK(
      problems_of("[dsk.a]\n") ==
      std::vector<std::string>{"p.toml:1:2: \"dsk\" is no kind of row of a profile; nearest legal "
                               "value: \"disk\", in a table like [disk.id]"});
  CHECK(problems_of("[link]\ngbs_dir = 1\n") ==
        std::vector<std::string>{"p.toml:2:1: \"gbs_dir\" stands outside of a row; write it in a "
                                 "table like [link.id]"});
  const auto misspelt = problems_of(with("bf16_thin_tflops", "bf16_thin_tflop"));
  REQUIRE(misspelt.size() == 2);  // the missing one and the unknown one
  CHECK(misspelt[0].find("cpu.threads_2 has no bf16_thin_tflops") != std::string::npos);
  CHECK(misspelt[1].find("did you mean \"bf16_thin_tflops\"?") != std::string::npos);
  const auto zero = problems_of(with("gbs_dir = 2", "gbs_dir = 0"));
  REQUIRE(zero.size() == 1);
  CHECK(zero[0].find("link.between_processes.gbs_dir = 0 is out of range") != std::string::npos);
  const auto text = problems_of(with("threads = 2", "threads = \"2\""));
  REQUIRE(text.size() == 1);
  CHECK(text[0].find("cpu.threads_2.threads is text, must be a number") != std::string::npos);
}

TEST_CASE("a plan takes the rates of a profile and says so") {
  const TemporaryFolder folder;
  const fs::path file = folder / "here.toml";
  set_content(file, to_toml(small_profile()));
  const Outcome planned = call(plan_with(file));
  INFO(planned.err);
  REQUIRE(planned.code == 0);
  CHECK(planned.out.find("rates measured by troupe profile (" + file.string() + "): cpu0, cpu1") !=
        std::string::npos);
  CHECK(planned.out.find("measured just now") == std::string::npos);

  // Rates half as high: arithmetic that takes twice as long.
  MachineProfile slow = small_profile();
  kernels::KernelRates& reached = slow.cpus[0].reached;
  for (double* rate :
       {&reached.f32.large, &reached.bf16.large, &reached.rates.vector_f32, &reached.rates.memory})
    *rate /= 2;
  reached.rates.launch *= 2;
  const fs::path slow_file = folder / "slow.toml";
  set_content(slow_file, to_toml(slow));
  const auto predicted = [](std::vector<std::string> arguments) {
    arguments.emplace_back("--json");
    return nlohmann::json::parse(call(arguments).out)["predicted_step_seconds"].get<double>();
  };
  CHECK(predicted(plan_with(slow_file)) == Approx(2 * predicted(plan_with(file))).epsilon(1e-3));
}

TEST_CASE("a plan takes as many times as long as the profile's layers did") {
  const TemporaryFolder folder;
  const auto predicted = [&](double ratio, DType compute) {
    MachineProfile profile = small_profile();
    for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head})
      profile.cpus[0].layers.push_back({{kind, compute, ModelFamily::gpt2, 64, 256, 64, 256},
                                        {ratio, ratio, ratio, ratio, ratio}});
    set_content(folder / "here.toml", to_toml(profile));
    auto arguments = plan_with(folder / "here.toml");
    arguments.emplace_back("--json");
    return nlohmann::json::parse(call(arguments).out)["predicted_step_seconds"].get<double>();
  };
  CHECK(predicted(3, DType::f32) == Approx(3 * predicted(1, DType::f32)).epsilon(1e-3));
  // What was measured in the other type is no measure of this one.
  CHECK(predicted(3, DType::bf16) == Approx(predicted(1, DType::f32)).epsilon(1e-3));
  const Outcome planned = call(plan_with(folder / "here.toml"));
  CHECK(planned.out.find("rates and layers measured by troupe profile (") != std::string::npos);
}

TEST_CASE("auto takes each microbatch size as long as the profile's layers of that size did") {
  const TemporaryFolder folder;
  const auto chosen = [&](double small_ratio) {
    MachineProfile profile = small_profile();
    profile.cpus[0].reached.rates.launch = 1e-12;
    // smallest.toml: sequences of 16 tokens, 8 a batch.
    for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head})
      for (const auto& [sequences, ratio] : {std::pair{1U, small_ratio}, std::pair{8U, 1.0}})
        profile.cpus[0].layers.push_back(
            {{kind, DType::f32, ModelFamily::gpt2, 32, 16 * sequences, 16, 256},
             {ratio, ratio, ratio, ratio, ratio}});
    set_content(folder / "here.toml", to_toml(profile));
    auto arguments = plan_with(folder / "here.toml");
    arguments.insert(arguments.end(), {"--set", "training.microbatches=auto", "--json"});
    const Outcome planned = call(arguments);
    INFO(planned.err);
    REQUIRE(planned.code == 0);
    return nlohmann::json::parse(planned.out)["shape"]["microbatch_size"].get<int>();
  };
  const int even = chosen(1);
  CHECK(even < 8);
  // One sequence at a time takes a hundred times as long as its share of the batch.
  CHECK(chosen(100) > even);
}

TEST_CASE("layers of a profile read back, and damaged ones are refused by place") {
  MachineProfile profile = small_profile();
  profile.cpus[0].layers.push_back(
      {{LayerKind::head, DType::bf16, ModelFamily::llama, 96, 512, 128, 1000},
       {1.5, 2, 3, 0.25, 7}});
  const std::string text = to_toml(profile);
  std::vector<ConfigProblem> problems;
  const MachineProfile read = parse_machine_profile(text, "p.toml", problems);
  REQUIRE(problems.empty());
  CHECK(to_toml(read) == text);
  REQUIRE(read.cpu(2)->layers.size() == 1);
  CHECK(read.cpu(2)->layers[0].size == profile.cpus[0].layers[0].size);
  CHECK(read.cpu(2)->layers[0].ratio.norm == Approx(0.25));
  const auto damaged = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.rfind(from), from.size(), to);
    const auto found = problems_of(changed);
    return found.size() == 1 ? found[0] : std::to_string(found.size()) + " problems";
  };
  CHECK(damaged("\"head\"", "\"haed\"")
            .find("layer.threads_2_1.kind is \"haed\"; nearest legal value: "
                  "\"head\"") != std::string::npos);
  CHECK(damaged("threads = 2", "threads = 3").find("no [cpu.id] above it has threads = 3") !=
        std::string::npos);
  CHECK(damaged("width = 96", "width = 96.5").find("must be a whole number") != std::string::npos);
  CHECK(damaged("norm_x = 0.25", "norm_x = 0").find("norm_x = 0 is out of range") !=
        std::string::npos);
}

TEST_CASE("times are unsteady where the middle half of them differs by more than a fifth") {
  CHECK_FALSE(is_unsteady({1.0, 1.1, 1.15, 9.0}));
  CHECK(is_unsteady({1.0, 1.1, 1.5, 9.0}));
  CHECK(is_unsteady({1.0, 1.3}));
  CHECK_FALSE(is_unsteady({1.0, 1.1, 1.15}));
}

TEST_CASE("links that nobody wrote are the profile's, and read back from the resolved file") {
  const TemporaryFolder folder;
  set_content(folder / "here.toml", to_toml(small_profile()));
  ConfigOptions options;
  options.overrides = {"cluster.profile=" + (folder / "here.toml").string(),
                       "link.between_processes.latency=\"7 ms\"", "link.copy_in_process=true"};
  const auto loaded = load_config("tests/golden/config/good/smallest.toml", options);
  INFO((loaded.ok() ? "" : loaded.error().text));
  REQUIRE(loaded.ok());
  CHECK(loaded->spec.cluster.between_processes.latency == Approx(7e-3));
  CHECK(loaded->spec.cluster.between_processes.bandwidth == Approx(2e9));
  CHECK(loaded->spec.cluster.same_process.latency == Approx(2e-6));
  CHECK(loaded->spec.cluster.same_process.bandwidth == Approx(6e9));
  // One thread was not profiled.
  REQUIRE(loaded->warnings.size() == 2);
  CHECK(loaded->warnings[0].find("has no row for a processor with 1 threads") != std::string::npos);
  CHECK(loaded->spec.cluster.devices[0].needs_measuring());
  const auto again = parse_config(loaded->resolved, "tests/golden/config/good/smallest.toml");
  REQUIRE(again.loaded);
  CHECK(again.loaded->spec.cluster.between_processes.bandwidth ==
        loaded->spec.cluster.between_processes.bandwidth);
  CHECK(again.loaded->spec.cluster.same_process.latency ==
        loaded->spec.cluster.same_process.latency);

  options.overrides = {"cluster.profile=nowhere.toml"};
  const auto missing = load_config("tests/golden/config/good/smallest.toml", options);
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.error().text.find("cluster.profile: there is no file \"nowhere.toml\"") !=
        std::string::npos);
}

TEST_CASE("troupe profile measures what is here once a kind, and overwrites nothing unasked") {
  const TemporaryFolder folder;
  const std::string file = (folder / "here.toml").string();
  const std::vector<std::string> arguments{"profile",     "tests/golden/config/good/smallest.toml",
                                           "--out",       file,
                                           "--budget",    "1 s",
                                           "--disk",      folder.path().string(),
                                           "--disk-size", "1 MiB"};
  const Outcome first = call(arguments);
  INFO(first.err);
  REQUIRE(first.code == 0);
  // Two devices of one thread each are alike.
  CHECK(first.err.find("[1/4] processor, 1 thread: ") != std::string::npos);
  CHECK(first.err.find("[4/4] disk under ") != std::string::npos);
  std::vector<ConfigProblem> problems;
  const MachineProfile profile = parse_machine_profile(content_of(file), file, problems);
  CHECK(problems.empty());
  REQUIRE(profile.cpus.size() == 1);
  CHECK(profile.cpus[0].threads == 1);
  // The configuration's own layers come first, whatever the budget leaves out.
  const auto spec = load_config("tests/golden/config/good/smallest.toml")->spec;
  REQUIRE(profile.cpus[0].layers.size() >= 3);
  for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head})
    CHECK(profile.cpus[0].layers[static_cast<std::size_t>(kind)].size ==
          size_of(spec.model, spec.shape, kind));
  CHECK(first.out.find("layers measured with 1 thread: gpt2 of width 32 (f32)") !=
        std::string::npos);
  // Everybody may read it whom the system lets.
  const ::mode_t kept_back = ::umask(022);
  ::umask(kept_back);
  CHECK(fs::status(file).permissions() == fs::perms{0666U & ~kept_back});
  CHECK(profile.links.size() == 2);
  CHECK(profile.disks.size() == 1);
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);  // the file alone

  const std::string before = content_of(file);
  const Outcome second = call(arguments);
  CHECK(second.code == 2);
  CHECK(second.err.find(file + " exists; another name with --out FILE, or --force") !=
        std::string::npos);
  CHECK(content_of(file) == before);

  // A folder is never replaced, by force neither, and what lies beside the file stays.
  fs::create_directories(folder / "kept" / "inside");
  auto over_a_folder = arguments;
  std::replace(over_a_folder.begin(), over_a_folder.end(), file, (folder / "kept").string());
  over_a_folder.emplace_back("--force");
  const Outcome refused = call(over_a_folder);
  CHECK(refused.code == 2);
  CHECK(refused.err.find("is no file, and is never replaced") != std::string::npos);
  CHECK(fs::is_directory(folder / "kept" / "inside"));
  fs::create_directories(file + ".new/inside");

  auto forced = arguments;
  for (const char* more : {"--force", "--json", "--quiet"}) forced.emplace_back(more);
  const Outcome third = call(forced);
  CHECK(third.code == 0);
  CHECK(fs::is_directory(file + ".new/inside"));
  CHECK(third.err.find("[1/4]") == std::string::npos);
  const auto json = nlohmann::json::parse(third.out);
  CHECK(json["cpu"]["threads_1"]["fp32_tflops"] > 0);
  CHECK(json["link"]["between_processes"]["latency_us"] > 0);
}

TEST_CASE("devices that are not here are left out with a word") {
  const TemporaryFolder folder;
  const Outcome run = call({"profile", "tests/golden/config/good/everything.toml", "--out",
                            (folder / "here.toml").string(), "--budget", "1200 ms", "--quiet"});
  INFO(run.err);
  CHECK(run.code == 0);
  CHECK(run.err.find("left out: a100 plays a100_sxm4_40 of the catalogue") != std::string::npos);
  CHECK(run.err.find("left out: cpu belongs to node far, which joins") != std::string::npos);
  CHECK(run.out.find("written to ") != std::string::npos);
}

TEST_CASE("troupe profile refuses bad values before it measures") {
  const TemporaryFolder folder;
  const std::string file = (folder / "here.toml").string();
  const auto refused = [&](std::vector<std::string> more, const std::string& out = "") {
    std::vector<std::string> arguments{"profile", "--out", out.empty() ? file : out};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome run = call(arguments);
    CHECK(run.code == 2);
    CHECK(run.err.find("[1/") == std::string::npos);
    CHECK_FALSE(fs::exists(file));
    return run.err;
  };
  CHECK(refused({"--budget", "5"}).find("--budget: \"5\" is not a time: the unit is missing") !=
        std::string::npos);
  CHECK(refused({"--budget", "0 s"}).find("above 0") != std::string::npos);
  CHECK(refused({"tests/golden/config/good/smallest.toml", "--budget", "20 ms"})
            .find("--budget 20.0 ms: 1 number of threads and two links take longer; at least "
                  "600 ms") != std::string::npos);
  CHECK(refused({"--disk", "/nowhere"}).find("there is no such folder") != std::string::npos);
  CHECK(refused({"--disk-size", "1 KiB"}).find("at least 1 MiB") != std::string::npos);
  CHECK(refused({}, "/nowhere/x.toml").find("there is no folder /nowhere") != std::string::npos);
  CHECK(refused({"--set", "run.steps=3"}).find("--set changes a configuration: name one") !=
        std::string::npos);
  CHECK(refused({"--bugdet", "1 s"}).find("did you mean --budget?") != std::string::npos);
}

}  // namespace troupe
