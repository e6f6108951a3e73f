#include "apps/run_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>

#include "apps/architecture_file.h"
#include "apps/config_schema.h"
#include "tests/support/catch.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

// The tests run in the repository's root, so that error texts name files as a user would.
std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  INFO(path.string());
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> toml_files(const fs::path& folder) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".toml") out.push_back(entry.path().string());
  std::sort(out.begin(), out.end());
  return out;
}

const std::string smallest = "tests/golden/config/good/smallest.toml";

std::string errors_of(const std::string& text, std::vector<std::string> overrides = {}) {
  ConfigOptions options;
  options.overrides = std::move(overrides);
  return to_text(parse_config(text, smallest, options).problems);
}

/// Every value of a spec as text, so that two specs can be compared and the difference read.
std::string dump(const RunSpec& spec) {
  std::string out =
      fmt::format("{} {} {} {} {} {}:{} {} {} {}\n", spec.name, spec.folder, spec.steps, spec.seed,
                  spec.state_hash_every, spec.listen_host, spec.listen_port, spec.request_timeout,
                  spec.join_timeout, spec.copy_between_devices);
  const ModelSpec& m = spec.model;
  out += fmt::format("model {} {} {} {} {} {} {} {} {} {} {} {}\n", static_cast<int>(m.family),
                     m.blocks, m.width, m.heads, m.kv_heads, m.ffn_width, m.vocabulary, m.context,
                     m.tied, m.norm_epsilon, m.rope_theta, m.dropout);
  for (const StepShape& s : {spec.shape, spec.plan.shape})
    out += fmt::format("shape {} {} {} {} {}\n", s.microbatch_count, s.microbatch_size,
                       s.sequence_length, s.batch_size, to_string(s.compute));
  const AdamWSpec& a = spec.optimizer;
  out += fmt::format("adamw {} {} {} {} {}\n", a.beta1, a.beta2, a.epsilon, a.weight_decay,
                     a.clip_norm);
  const LearningRateSpec& l = spec.learning_rate;
  out += fmt::format("rate {} {} {} {} {}\n", static_cast<int>(l.shape), l.learning_rate, l.minimum,
                     l.warmup_steps, l.total_steps);
  for (const std::string& file : spec.data.files) out += "file " + file + "\n";
  out += fmt::format("data {} {} {} {} {} {}\n", static_cast<int>(spec.data.format),
                     spec.data.jsonl_field, static_cast<int>(spec.data.tokenizer),
                     spec.data.tokenizer_folder, spec.data.cache_folder,
                     spec.data.validation_fraction);
  out += fmt::format("checkpoint {} {} {} evaluation {} {}\n", spec.checkpoint.every_steps,
                     spec.checkpoint.keep, spec.checkpoint.resume_from, spec.evaluation.every_steps,
                     spec.evaluation.batches);
  for (const NodeSpec& n : spec.cluster.nodes)
    out += fmt::format("node {} {} {} {} {} {} {}\n", n.name, n.own_process, n.host.memory,
                       n.host.memory_rate, n.disk.space, n.disk.read, n.disk.write);
  for (const NodeId id : spec.joining_nodes) out += fmt::format("joins {}\n", id.value);
  for (const DeviceSpec& d : spec.cluster.devices)
    out += fmt::format("device {} {} {} {} {} {} {} {} {} {} {} {} {}\n", d.name, d.node.value,
                       static_cast<int>(d.kind), d.model, d.memory, d.threads, d.rates.matmul_f32,
                       d.rates.matmul_bf16, d.rates.vector_f32, d.rates.memory, d.rates.launch,
                       d.host_link.latency, d.host_link.bandwidth);
  for (const LinkSpec& link : {spec.cluster.same_process, spec.cluster.between_processes})
    out += fmt::format("link {} {}\n", link.latency, link.bandwidth);
  for (const auto& [pair, link] : spec.cluster.overrides)
    out += fmt::format("override {} {} {} {}\n", pair.first, pair.second, link.latency,
                       link.bandwidth);
  out += fmt::format("plan {} {} {} {} {} {} {}\n", to_string(spec.plan.schedule), spec.plan.chunks,
                     spec.plan.transfer_slots, spec.plan.choose_microbatches,
                     spec.plan.choose_schedule, to_string(spec.plan.recompute),
                     spec.plan.choose_recompute);
  for (const StagePlan& s : spec.plan.pinned)
    out += fmt::format("stage {} {} {}\n", s.layers.first, s.layers.last, s.device.value);
  return out + fmt::format("scale {}\n", spec.emulation_time_scale);
}

}  // namespace

TEST_CASE("every broken configuration is refused with its golden text") {
  const auto files = toml_files("tests/golden/config/broken");
  REQUIRE(files.size() >= 60);
  for (const std::string& file : files) {
    const auto loaded = load_config(file);
    INFO(file);
    REQUIRE_FALSE(loaded.ok());
    CHECK(loaded.error().code == ErrorCode::invalid_input);
    CHECK(loaded.error().text == read(fs::path(file).replace_extension(".expected")));
  }
}

TEST_CASE("good configurations read back from their resolved text") {
  auto files = toml_files("tests/golden/config/good");
  REQUIRE(files.size() >= 5);
  for (const std::string& file : files) {
    INFO(file);
    const auto loaded = load_config(file);
    INFO((loaded.ok() ? std::string{} : loaded.error().text));
    REQUIRE(loaded.ok());
    const auto again = parse_config(loaded->resolved, "elsewhere/config.toml");
    INFO(to_text(again.problems));
    REQUIRE(again.loaded.has_value());
    CHECK(dump(again.loaded->spec) == dump(loaded->spec));
    CHECK(again.loaded->resolved == loaded->resolved);
  }
}

TEST_CASE("all of conf/ parses") {
  int runs = 0;
  for (const std::string& file : toml_files("conf")) {
    if (fs::path(file).filename() == "devices.toml") continue;
    INFO(file);
    const auto loaded = load_config(file);
    INFO((loaded.ok() ? std::string{} : loaded.error().text));
    REQUIRE(loaded.ok());
    CHECK(loaded->warnings.empty());
    ++runs;
  }
  CHECK(runs >= 4);
  int models = 0;
  for (const std::string& file : toml_files("conf/models")) {
    INFO(file);
    const auto model = load_architecture(file);
    INFO((model.ok() ? std::string{} : model.error().text));
    CHECK(model.ok());
    ++models;
  }
  CHECK(models >= 48);
}

TEST_CASE("L125 three problems are reported at once, with place and suggestion") {
  const auto loaded = load_config("tests/golden/config/broken/three_misspelt_keys.toml");
  REQUIRE_FALSE(loaded.ok());
  const std::string& text = loaded.error().text;
  CHECK(std::count(text.begin(), text.end(), '\n') == 3);
  CHECK(text.find(".toml:4:1: ") != std::string::npos);
  CHECK(text.find("\"clip_norm\" in [optimizer]") != std::string::npos);
  CHECK(text.find("this key belongs to [optimizer]") != std::string::npos);
}

TEST_CASE("L009 thirty blocks are placed once each or the run does not start") {
  const auto good = load_config("tests/golden/config/good/thirty_blocks_on_two_devices.toml");
  REQUIRE(good.ok());
  std::vector<int> placed(layer_count(good->spec.model));
  for (const StagePlan& stage : good->spec.plan.pinned)
    for (std::uint32_t layer = stage.layers.first; layer < stage.layers.last; ++layer)
      ++placed.at(layer);
  CHECK(placed == std::vector<int>(32, 1));
  CHECK_FALSE(
      load_config("tests/golden/config/broken/thirty_blocks_of_which_28_are_placed.toml").ok());
}

TEST_CASE("L010 stages that do not add up show both numbers and both places") {
  const std::string file = "tests/golden/config/broken/stages_not_covering_the_model.toml";
  const auto loaded = load_config(file);
  REQUIRE_FALSE(loaded.ok());
  const std::string& text = loaded.error().text;
  CHECK(text.find(file + ":34:10: the pinned stages place 2 layers") == 0);
  CHECK(text.find("model.blocks = 20 (model.blocks at " + file + ":6:10)") != std::string::npos);
}

TEST_CASE("L004 cuts are used to the letter") {
  std::string text = read(smallest) + "\n[plan]\nplan = \"pinned\"\ncuts = [7, 13, 19]\n";
  text.replace(text.find("blocks = 4"), 10, "blocks = 24");
  for (const char* name : {"cpu2", "cpu3"})
    text += fmt::format(
        "\n[[node]]\nname = \"{}\"\n[[node.device]]\nname = \"{}\"\nmemory = \"1 GiB\"\n", name,
        name);
  const auto outcome = parse_config(text, smallest);
  INFO(to_text(outcome.problems));
  REQUIRE(outcome.loaded.has_value());
  const std::vector<StagePlan> expected{{{0, 7}, DeviceId{0}},
                                        {{7, 13}, DeviceId{1}},
                                        {{13, 19}, DeviceId{2}},
                                        {{19, 26}, DeviceId{3}}};
  CHECK(outcome.loaded->spec.plan.pinned == expected);
}

TEST_CASE("L130 nodes with two, four and one device: every pair of node and index once") {
  std::string text = read(smallest);
  text = text.substr(0, text.find("[[node]]"));
  text.replace(text.find("blocks = 4"), 10, "blocks = 6");
  const std::vector<std::uint32_t> counts = {2, 4, 1};
  for (std::size_t n = 0; n < counts.size(); ++n) {
    text += fmt::format("\n[[node]]\nname = \"node{}\"\nprocess = true\n", n);
    for (std::uint32_t d = 0; d < counts[n]; ++d)
      text += fmt::format("[[node.device]]\nname = \"cpu{}{}\"\nmemory = \"{} MiB\"\n", n, d,
                          100 * (n + 1) + d);
  }
  const auto outcome = parse_config(text, smallest);
  INFO(to_text(outcome.problems));
  REQUIRE(outcome.loaded.has_value());
  const ClusterSpec& cluster = outcome.loaded->spec.cluster;
  REQUIRE(cluster.nodes.size() == 3);
  REQUIRE(cluster.devices.size() == 7);
  std::size_t next = 0;
  for (std::uint32_t n = 0; n < 3; ++n)
    for (std::uint32_t d = 0; d < counts[n]; ++d) {
      const DeviceSpec& device = cluster.devices[next++];
      CHECK(device.node == NodeId{n});
      CHECK(device.memory == (100 * (n + 1) + d) * 1_MiB);  // the one that was written there
    }
  std::set<std::string> names;
  for (const DeviceSpec& device : cluster.devices) CHECK(names.insert(device.name).second);
}

TEST_CASE("L138 bf16 on a device that has none is refused before anything is planned") {
  const auto loaded = load_config("tests/golden/config/broken/bf16_on_a_v100.toml");
  REQUIRE_FALSE(loaded.ok());
  CHECK(loaded.error().text.find("v100_pcie_16, which has no bf16") != std::string::npos);
  CHECK(loaded.error().text.find("nearest legal value: \"f32\"") != std::string::npos);
  std::string text = read("tests/golden/config/broken/bf16_on_a_v100.toml");
  text.replace(text.find("compute = \"bf16\""), 16, "compute = \"f32\"");
  CHECK(errors_of(text).empty());
}

TEST_CASE("L144 only loopback addresses are listened on") {
  const std::string text = read(smallest);
  for (const char* good : {"127.0.0.1:0", "localhost:80", "127.1.2.3:65535"})
    CHECK(errors_of(text, {fmt::format("network.listen={}", good)}).empty());
  for (const char* bad : {"0.0.0.0:1", "10.0.0.1:1", "[::]:1", "127.0.0.1:65536", "127.0.0.1:",
                          ":1", "127.0.0.1.example.org:1", "127.a:1", "localhost.example.org:1"}) {
    INFO(bad);
    CHECK(errors_of(text, {fmt::format("network.listen={}", bad)})
              .find("nearest legal value: \"127.0.0.1:") != std::string::npos);
  }
}

TEST_CASE("L146 every key has a page, and every page's default is legal") {
  std::set<std::string> seen;
  for (const ConfigKey& key : config_keys()) {
    INFO(path_of(key));
    CHECK(seen.insert(path_of(key)).second);
    CHECK(find_table(key.table) != nullptr);
    const auto page = explain(path_of(key));
    REQUIRE(page.has_value());
    CHECK(page->find(std::string(key.help)) != std::string::npos);
    CHECK(key.help.size() > 10);
    CHECK_FALSE(key.fallback.empty());
    CHECK(explain_all().find(std::string(key.name)) != std::string::npos);
  }
  for (const ConfigTable& table : config_tables()) CHECK(explain(table.name).has_value());
  CHECK_FALSE(explain("run.nothing").has_value());
  // After a change of the table: troupe explain --markdown > conf/keys.md
  CHECK(read("conf/keys.md") == keys_markdown());
}

TEST_CASE("overrides win over the file and name themselves in errors") {
  ConfigOptions options;
  options.overrides = {"run.steps=77",         "run.name=from-the-shell",
                       "plan.schedule=zb-h1",  "node.0.device.1.memory=2 GiB",
                       "optimizer.beta2=0.95", "run.steps=78"};
  const auto outcome = parse_config(read(smallest), smallest, options);
  INFO(to_text(outcome.problems));
  REQUIRE(outcome.loaded.has_value());
  const RunSpec& spec = outcome.loaded->spec;
  CHECK(spec.steps == 78);
  CHECK(spec.name == "from-the-shell");
  CHECK(spec.plan.schedule == ScheduleKind::zero_bubble_h1);
  CHECK(spec.cluster.devices[1].memory == 2_GiB);
  CHECK(spec.optimizer.beta2 == 0.95);

  const std::string text = read(smallest);
  CHECK(errors_of(text, {"run.stpes=1"}) ==
        "--set run.stpes=1: unknown key \"stpes\" in [run]; did you mean \"steps\"?\n");
  CHECK(errors_of(text, {"run.steps=0"}) ==
        "--set run.steps=0: run.steps = 0 is out of range (1 to 1000000000000); nearest legal "
        "value: 1\n");
  CHECK(errors_of(text, {"run.steps"}) ==
        "--set run.steps: there is no \"=\"; write it like --set run.steps=100\n");
  CHECK(errors_of(text, {"run.steps.deep=1"}) ==
        "--set run.steps.deep=1: run.steps is an integer, not a table\n");
  CHECK(errors_of(text, {"node.3.name=x"}) ==
        "--set node.3.name=x: node is a list of 1: \"3\" is no index of it; the first is node.0\n");
  CHECK(errors_of(text, {"run.name=a\nb = 1"}).find("is no name") != std::string::npos);
}

TEST_CASE("an override of a text key may look like a number") {
  ConfigOptions options;
  options.overrides = {"run.name=7"};
  const auto outcome = parse_config(read(smallest), smallest, options);
  REQUIRE(outcome.loaded.has_value());
  CHECK(outcome.loaded->spec.name == "7");
}

TEST_CASE("emulated devices take rates and memory from the catalogue") {
  std::string text = read(smallest);
  text += "\n[emulation]\ntime_scale = 10\nmemory_scale = 0.001\n";
  const std::string cpu = "name = \"cpu0\"\nmemory = \"64 MiB\"";
  text.replace(text.find(cpu), cpu.size(),
               "name = \"v\"\nkind = \"emulated\"\nmodel = \"v100_pcie_16\"");
  const auto outcome = parse_config(text, smallest);
  INFO(to_text(outcome.problems));
  REQUIRE(outcome.loaded.has_value());
  const DeviceSpec& device = outcome.loaded->spec.cluster.devices[0];
  CHECK(device.memory == 16'000'000);                            // 16 GB x 0.001
  CHECK(device.rates.matmul_f32 == Approx(14.0e12 * 0.6 / 10));  // 14 TFLOPS
  CHECK(device.rates.matmul_bf16 == 0);                          // Volta has none
  CHECK(device.rates.memory == Approx(900e9 * 0.8 / 10));        // 900 GB/s
  CHECK(device.rates.launch == Approx(5e-5));                    // 5 us
}

TEST_CASE("host memory and disk of a node: from the catalogue, a profile, or keys that beat both") {
  const auto node_of = [](std::vector<std::string> overrides) {
    ConfigOptions options;
    options.overrides = std::move(overrides);
    const auto outcome = parse_config(read("conf/offload.toml"), "conf/offload.toml", options);
    INFO(to_text(outcome.problems));
    REQUIRE(outcome.loaded.has_value());
    return outcome.loaded->spec.cluster;
  };
  const ClusterSpec rows = node_of({});
  CHECK(rows.nodes[0].host.memory == 256_GiB);
  CHECK(rows.nodes[0].host.memory_rate == Approx(204.8e9 * 0.8).epsilon(1e-3));
  CHECK(rows.nodes[0].disk.space == 1024_GiB);
  CHECK(rows.nodes[0].disk.read > rows.nodes[0].disk.write);
  CHECK(rows.nodes[0].disk.write > 1e9);
  CHECK(rows.devices[0].host_link.bandwidth == Approx(31.5e9 * 0.8));
  CHECK(rows.devices[0].host_link.latency == Approx(5e-6));
  // Everything that a catalogue says is as much slower as the devices are.
  const ClusterSpec slow = node_of({"emulation.time_scale=10"});
  CHECK(slow.nodes[0].host.memory_rate == Approx(rows.nodes[0].host.memory_rate / 10));
  CHECK(slow.nodes[0].disk.read == Approx(rows.nodes[0].disk.read / 10));
  CHECK(slow.devices[0].host_link.bandwidth == Approx(rows.devices[0].host_link.bandwidth / 10));
  const ClusterSpec keys =
      node_of({"emulation.time_scale=10", "node.0.host_memory_rate=\"20 GB/s\"",
               "node.0.disk_read=\"3 GB/s\"", "node.0.disk_write=\"2 GB/s\"",
               "node.0.device.1.host_link=\"12 GB/s\""});
  CHECK(keys.nodes[0].host.memory_rate == 20e9);
  CHECK(keys.nodes[0].disk.read == 3e9);
  CHECK(keys.nodes[0].disk.write == 2e9);
  CHECK(keys.devices[1].host_link.bandwidth == 12e9);
}

TEST_CASE("host memory that nothing may fill is warned of where its rates are written") {
  ConfigOptions options;
  options.overrides = {"node.0.host_memory=\"0 GiB\""};
  const auto outcome = parse_config(read("conf/offload.toml"), "conf/offload.toml", options);
  INFO(to_text(outcome.problems));
  REQUIRE(outcome.loaded.has_value());
  const auto& warnings = outcome.loaded->warnings;
  CHECK(std::count_if(warnings.begin(), warnings.end(), [](const std::string& text) {
          return text.find("has no effect") != std::string::npos;
        }) == 2);  // host, and the disk behind it
}

TEST_CASE("microbatches of a batch that they do not divide") {
  ConfigOptions options;
  options.overrides = {"training.batch_size=10", "training.microbatches=4"};
  const auto outcome = parse_config(read(smallest), smallest, options);
  REQUIRE(outcome.loaded.has_value());
  CHECK(outcome.loaded->spec.shape.microbatch_size == 3);  // 3 + 3 + 3 + 1
  CHECK(outcome.loaded->spec.shape.microbatch_count == 4);
}

TEST_CASE("what the planner chose stands in the resolved text as if it had been written") {
  const std::string file = "tests/golden/config/good/choices.toml";
  const auto open = load_config(file);
  REQUIRE(open.ok());
  CHECK(open->spec.plan.choose_microbatches);
  CHECK(open->spec.plan.choose_schedule);
  CHECK(open->spec.plan.choose_recompute);
  RunSpec spec = open->spec;
  spec.shape.microbatch_count = 4;
  spec.plan.schedule = ScheduleKind::interleaved;
  spec.plan.chunks = 2;
  spec.plan.choose_recompute = false;
  spec.plan.recompute = Recompute::selective;
  const auto written = parse_config(with_choices(open->resolved, spec), file);
  INFO(to_text(written.problems));
  REQUIRE(written.loaded.has_value());
  const RunSpec& read_back = written.loaded->spec;
  CHECK_FALSE(read_back.plan.choose_microbatches);
  CHECK_FALSE(read_back.plan.choose_schedule);
  CHECK_FALSE(read_back.plan.choose_recompute);
  CHECK(read_back.plan.recompute == Recompute::selective);
  CHECK(read_back.shape.microbatch_count == 4);
  CHECK(read_back.shape.microbatch_size == 2);
  CHECK(read_back.plan.schedule == ScheduleKind::interleaved);
  CHECK(read_back.plan.chunks == 2);
  // Stages that compute unlike things again are chosen anew.
  spec.plan.choose_recompute = true;
  CHECK(load_config(file)->resolved != with_choices(open->resolved, spec));
  CHECK(with_choices(open->resolved, spec).find("recompute = \"auto\"") != std::string::npos);
  // What was written stays.
  const auto fixed = load_config(smallest);
  REQUIRE(fixed.ok());
  CHECK(with_choices(fixed->resolved, spec) == fixed->resolved);
}

TEST_CASE("settings without effect are warnings, not errors") {
  ConfigOptions options;
  options.overrides = {"model.rope_theta=5000.0"};
  const auto outcome = parse_config(read(smallest), smallest, options);
  REQUIRE(outcome.loaded.has_value());
  REQUIRE(outcome.loaded->warnings.size() == 1);
  CHECK(outcome.loaded->warnings[0].find("model.rope_theta has no effect") != std::string::npos);
}

TEST_CASE("a file that is not there, a folder and a huge file are refused") {
  CHECK(load_config("conf/nowhere.toml").error().text ==
        "conf/nowhere.toml: there is no such file");
  CHECK(load_config("conf").error().text == "conf: this is not a file");
}

TEST_CASE("a misspelt key in any table gets a suggestion") {
  // Each key of each table that the largest good file has, with one letter changed.
  const std::string text = read("tests/golden/config/good/everything.toml");
  std::mt19937 random(20240611);
  INFO("seed 20240611");
  int mutations = 0;
  std::size_t line_start = 0;
  std::size_t line_number = 1;
  for (; line_start < text.size(); ++line_number) {
    const std::size_t line_end = text.find('\n', line_start);
    const std::string line = text.substr(line_start, line_end - line_start);
    const std::size_t equals = line.find(" = ");
    if (equals != std::string::npos && line[0] != '#') {
      const std::size_t at = random() % equals;
      std::string changed = text;
      const char letter = static_cast<char>('a' + random() % 26);
      if (letter != line[at]) {
        changed[line_start + at] = letter;
        const auto outcome = parse_config(changed, smallest);
        INFO(line << " with " << letter << " at " << at);
        REQUIRE_FALSE(outcome.problems.empty());
        const auto found = std::find_if(
            outcome.problems.begin(), outcome.problems.end(), [&](const ConfigProblem& problem) {
              return problem.at.line == line_number && problem.at.column == 1 &&
                     problem.text.find("; ") != std::string::npos &&
                     problem.text.find(line.substr(0, equals)) != std::string::npos;
            });
        CHECK(found != outcome.problems.end());
        ++mutations;
      }
    }
    line_start = line_end + 1;
  }
  CHECK(mutations > 50);
}

TEST_CASE("random damage to a configuration gives values or placed problems, never a crash") {
  const std::string text = read("tests/golden/config/good/everything.toml");
  const unsigned seed = GENERATE(range(0U, 300U));
  INFO("seed " << seed);
  std::mt19937 random(seed);
  std::string damaged = text;
  for (unsigned i = 0; i < 1 + seed % 4; ++i) {
    const std::size_t at = random() % damaged.size();
    switch (random() % 3) {
      case 0: damaged.erase(at, 1 + random() % 30); break;
      case 1: damaged.insert(at, text.substr(random() % text.size(), random() % 40)); break;
      default: damaged[at] = static_cast<char>(random() % 256); break;
    }
  }
  ConfigOptions options;
  options.look_at_files = false;
  const auto outcome = parse_config(damaged, "c.toml", options);
  CHECK(outcome.loaded.has_value() == outcome.problems.empty());
  for (const ConfigProblem& problem : outcome.problems) {
    CHECK(problem.at.line > 0);
    CHECK_FALSE(problem.text.empty());
  }
}

}  // namespace troupe
