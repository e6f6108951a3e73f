#include "tests/support/own_runs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "actors/launch.h"
#include "apps/plan_tables.h"
#include "apps/run_config.h"
#include "tests/support/temporary_folder.h"

namespace troupe::test {
namespace {

// 10 blocks: layers 0 to 11. So small that its real arithmetic is a small part of what emulated
// devices make it last.
constexpr const char* common = R"(
[run]
name = "own-run"
[model]
family = "gpt2"
blocks = 10
width = 32
heads = 2
vocabulary = 256
context = 16
[data]
files = ["data/moby-dick.txt"]
[training]
batch_size = 8
sequence_length = 16
[evaluation]
batches = 1
[plan]
schedule = "1f1b"
[emulation]
time_scale = 8000.0
launch = "4 ns"
memory_scale = 0.001
)";

std::string device(const std::string& name,
                   const std::string& model,
                   const std::string& more = "") {
  return fmt::format("[[node.device]]\nname = \"{}\"\nkind = \"emulated\"\nmodel = \"{}\"\n{}",
                     name, model, more);
}

std::string link_text(const std::string& table, const char* latency, const char* bandwidth) {
  return fmt::format("{}\nlatency = \"{}\"\nbandwidth = \"{}\"\n", table, latency, bandwidth);
}

std::string override_text(const char* from,
                          const char* to,
                          const char* latency,
                          const char* bandwidth) {
  return link_text(fmt::format("[[link.override]]\nfrom = \"{}\"\nto = \"{}\"", from, to), latency,
                   bandwidth);
}

/// Pinned: the first layers of stages but the first, and the device of each stage.
struct Pins {
  std::string name;
  std::vector<std::uint32_t> cuts;
  std::vector<std::string> devices;
};

OwnPlan plan_of(const std::string& schedule, std::uint32_t microbatches, const Pins* pins) {
  OwnPlan plan;
  plan.name = fmt::format("{} m{} {}", schedule, microbatches, pins ? pins->name : "auto");
  plan.settings = {fmt::format("plan.schedule=\"{}\"", schedule),
                   fmt::format("training.microbatches={}", microbatches)};
  if (pins == nullptr) {
    if (schedule == "interleaved") plan.settings.emplace_back("plan.chunks=2");
    return plan;
  }
  plan.settings.emplace_back("plan.plan=\"pinned\"");
  plan.settings.push_back(fmt::format("plan.cuts=[{}]", fmt::join(pins->cuts, ", ")));
  plan.settings.push_back(fmt::format("plan.devices=[\"{}\"]", fmt::join(pins->devices, "\", \"")));
  return plan;
}

/// Every schedule and count: left to the planner, and pinned one way or another.
/// `looped`: two stages a device, for the interleaved schedule.
std::vector<OwnPlan> plans_of(const std::vector<std::uint32_t>& counts,
                              const std::vector<Pins>& pins,
                              const Pins& looped) {
  std::vector<OwnPlan> plans;
  for (std::size_t i = 0; i < counts.size(); ++i)
    for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1"}) {
      const bool loops = std::string(schedule) == "interleaved";
      plans.push_back(plan_of(schedule, counts[i], nullptr));
      plans.push_back(plan_of(schedule, counts[i], loops ? &looped : &pins[i % pins.size()]));
    }
  return plans;
}

OwnCluster unlike_gpus() {
  OwnCluster cluster;
  cluster.name = "unlike-gpus";
  cluster.configuration = std::string(common) + "[[node]]\nname = \"server\"\n" +
                          device("v100", "v100_pcie_16") + device("rtx3090", "rtx3090_24") +
                          device("t4", "t4_16") +
                          link_text("[link.same_process]", "100 us", "100 MB/s");
  cluster.plans =
      plans_of({4, 8},
               {{"even", {4, 8}, {"v100", "rtx3090", "t4"}},
                {"by speed", {2, 8}, {"t4", "rtx3090", "v100"}}},
               {"even", {2, 4, 6, 8, 10}, {"v100", "rtx3090", "t4", "v100", "rtx3090", "t4"}});
  return cluster;
}

/// The fastest device holds three blocks at most; links are slow, one of them one way only.
OwnCluster little_memory() {
  OwnCluster cluster;
  cluster.name = "little-memory";
  cluster.configuration = std::string(common) + "[[node]]\nname = \"office\"\n" +
                          device("a100", "a100_pcie_40", "memory = \"1800 KiB\"\n") +
                          device("p100", "p100_pcie_16") + device("t4", "t4_16") +
                          link_text("[link.same_process]", "1 ms", "2 MB/s") +
                          override_text("a100", "p100", "4 ms", "1 MB/s") +
                          override_text("t4", "p100", "6 ms", "500 KB/s");
  cluster.plans = plans_of(
      {2, 4},
      {{"even", {3, 7}, {"a100", "p100", "t4"}}, {"other order", {5, 9}, {"p100", "t4", "a100"}}},
      {"even", {1, 3, 5, 7, 9}, {"a100", "p100", "t4", "a100", "p100", "t4"}});
  return cluster;
}

OwnCluster one_slower() {
  OwnCluster cluster;
  cluster.name = "one-slower";
  cluster.configuration = std::string(common) + "[[node]]\nname = \"rack\"\n";
  for (const char* name : {"a0", "a1", "a2"}) cluster.configuration += device(name, "a10_24");
  cluster.configuration +=
      device("slow", "t4_16") + link_text("[link.same_process]", "500 us", "20 MB/s");
  cluster.plans = plans_of(
      {4, 8},
      {{"even", {3, 6, 9}, {"a0", "a1", "a2", "slow"}},
       {"slow first", {2, 6, 9}, {"slow", "a0", "a1", "a2"}}},
      {"even", {2, 3, 5, 6, 8, 9, 11}, {"a0", "a1", "a2", "slow", "a0", "a1", "a2", "slow"}});
  return cluster;
}

OwnCluster three_processes() {
  OwnCluster cluster;
  cluster.name = "three-processes";
  cluster.processes = true;
  cluster.configuration = std::string(common);
  const auto node = [](const char* name, const std::string& device) {
    return fmt::format("[[node]]\nname = \"{}\"\nprocess = true\n", name) + device;
  };
  cluster.configuration += node("volta", device("v100", "v100_pcie_16")) +
                           node("ampere", device("rtx3090", "rtx3090_24")) +
                           node("turing", device("t4", "t4_16")) +
                           link_text("[link.between_processes]", "2 ms", "5 MB/s") +
                           override_text("v100", "rtx3090", "1 ms", "2 MB/s");
  cluster.plans =
      plans_of({4}, {{"even", {4, 8}, {"v100", "rtx3090", "t4"}}},
               {"even", {2, 4, 6, 8, 10}, {"v100", "rtx3090", "t4", "v100", "rtx3090", "t4"}});
  return cluster;
}

/// Ranks from 1; equal values share their mean rank.
std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (std::size_t i = 0; i < order.size();) {
    std::size_t end = i;
    while (end < order.size() && values[order[end]] == values[order[i]]) ++end;
    for (std::size_t j = i; j < end; ++j)
      ranks[order[j]] = (static_cast<double>(i) + static_cast<double>(end) + 1) / 2;
    i = end;
  }
  return ranks;
}

}  // namespace

std::vector<OwnCluster> own_clusters() {
  return {unlike_gpus(), little_memory(), one_slower(), three_processes()};
}

std::vector<OwnCluster> thinned(std::vector<OwnCluster> clusters, std::size_t stride) {
  std::erase_if(clusters, [](const OwnCluster& cluster) { return cluster.processes; });
  for (OwnCluster& cluster : clusters) {
    std::vector<OwnPlan> kept;
    for (std::size_t i = 0; i < cluster.plans.size(); i += stride) kept.push_back(cluster.plans[i]);
    cluster.plans = std::move(kept);
  }
  return clusters;
}

Result<OwnRun> measure_own_run(const OwnCluster& cluster,
                               const OwnPlan& plan,
                               std::uint64_t steps,
                               const std::string& node_program) {
  const TemporaryFolder folder;
  ConfigOptions settings;
  settings.overrides = plan.settings;
  settings.overrides.push_back(fmt::format("run.steps={}", steps));
  settings.overrides.push_back(
      fmt::format("data.cache_folder=\"{}\"", (folder / "cache").string()));
  const auto parsed =
      parse_config(cluster.configuration, TROUPE_SOURCE_DIR "/conf/own-run.toml", settings);
  const std::string name = cluster.name + ", " + plan.name + ": ";
  if (!parsed.loaded) return Error{ErrorCode::invalid_input, name + to_text(parsed.problems)};
  OwnRun run{cluster.name, plan.name, 0, 0, steps};
  std::vector<StepRow> rows;
  RunCallbacks callbacks;
  callbacks.on_plan = [&](const Plan& made, const ClusterSpec&) -> Status {
    run.predicted = made.predicted_step;
    return {};
  };
  callbacks.on_step = [&](const StepRow& row) { rows.push_back(row); };
  RunOptions options;
  options.node_program = node_program;
  const auto outcome = run_training(parsed.loaded->spec, callbacks, options);
  if (!outcome) return Error{outcome.error().code, name + outcome.error().text};
  run.measured = measure_steps(rows).step;
  return run;
}

Result<std::vector<OwnRun>> measure_own_runs(const std::vector<OwnCluster>& clusters,
                                             std::uint64_t steps,
                                             const std::string& node_program,
                                             const std::function<void(const OwnRun&)>& note) {
  std::vector<OwnRun> runs;
  for (const OwnCluster& cluster : clusters)
    for (const OwnPlan& plan : cluster.plans) {
      auto run = measure_own_run(cluster, plan, steps, node_program);
      if (!run) return run.error();
      if (note) note(*run);
      runs.push_back(std::move(*run));
    }
  return runs;
}

double rank_correlation(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECTS(a.size() == b.size() && a.size() >= 2);
  const std::vector<double> x = ranks_of(a), y = ranks_of(b);
  const double mean = (static_cast<double>(x.size()) + 1) / 2;
  double xy = 0, xx = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

double OwnScore::worst_choice() const {
  double worst = 1;
  for (const OwnChoice& choice : choices) worst = std::max(worst, choice.ratio);
  return worst;
}

OwnScore score_own_runs(const std::vector<OwnRun>& runs) {
  EXPECTS(runs.size() >= 2);
  OwnScore score;
  score.plans = runs.size();
  std::vector<double> predicted, measured;
  std::vector<std::string> names;
  for (const OwnRun& run : runs) {
    predicted.push_back(run.predicted);
    measured.push_back(run.measured);
    const double error = run.predicted / run.measured - 1;
    score.mean_error += std::abs(error) / static_cast<double>(runs.size());
    score.bias += error / static_cast<double>(runs.size());
    score.largest_error = std::max(score.largest_error, std::abs(error));
    if (std::find(names.begin(), names.end(), run.cluster) == names.end())
      names.push_back(run.cluster);
  }
  score.rank_correlation = rank_correlation(predicted, measured);
  score.clusters = names.size();
  for (const std::string& name : names) {
    const OwnRun* chosen = nullptr;
    const OwnRun* best = nullptr;
    for (const OwnRun& run : runs) {
      if (run.cluster != name) continue;
      if (chosen == nullptr || run.predicted < chosen->predicted) chosen = &run;
      if (best == nullptr || run.measured < best->measured) best = &run;
    }
    score.choices.push_back({name, chosen->plan, best->plan, chosen->measured / best->measured});
  }
  return score;
}

}  // namespace troupe::test
