// bloom_prequel_a100: trials before BLOOM's training, Megatron-DeepSpeed on Jean Zay's nodes of 8
// A100-80GB (bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles-prequel.md).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "tests/bench/published/fit.h"

namespace troupe::published {
namespace {

/// Host time of an op: that of the same framework in vtrain.cpp; it adds to the devices' because
/// these runs had CUDA_LAUNCH_BLOCKING=1. The efficiency is fitted.
Framework megatron_deepspeed(bool sums_in_f32, double efficiency) {
  Framework out;
  out.efficiency = efficiency;
  out.host_per_op = eager_host_per_op;
  out.waits_for_ops = true;
  // ZeRO-1 shards f32 weights and two moments, and while it steps its part of the gradients in 16
  // bits and as f32 (DeepSpeed, runtime/zero/stage_1_and_2.py: get_flat_partition, and what step
  // makes of it). The pipeline keeps outputs until their gradients come (runtime/pipe/engine.py,
  // pipe_buffers). Kernels take 1573 MiB (the same page), the bucket that gradients are reduced
  // from 5e8 elements of 16 bits (reduce_bucket_size, which these runs did not set).
  out.optimizer_bytes = 4 + 8 + 4 + 2;
  out.gradient_bytes = sums_in_f32 ? 2 + 4 : 2;
  out.logit_bytes = 2 + 4 + 4;
  out.context_bytes = 1573.0 * 1024 * 1024 + 2 * 5e8;
  out.keeps_outputs = true;
  out.unusable_share = allocator_share;
  return out;
}

constexpr const char* framework_name = "A100 16-bit Megatron-DeepSpeed";
constexpr double device_bytes = 80.0 * 1024 * 1024 * 1024;

struct Run {
  Row row;
  TransformerStack model;
  Layout layout;
};

/// DeepSpeed gives each stage as many blocks as fit an even share, rounded up, and the last one
/// what is left; with tables of words that count as a block ("type:transformer|embedding") where
/// only so the stages come out even.
std::vector<std::uint64_t> stages_of(std::uint64_t layers, std::uint64_t pipeline) {
  std::vector<std::uint64_t> out(pipeline, (layers + pipeline - 1) / pipeline);
  if (layers % pipeline != 0 && (layers + 2) % pipeline == 0 && pipeline > 1) {
    --out.front();
    --out.back();
    return out;
  }
  std::uint64_t left = layers;
  for (std::uint64_t& blocks : out) {
    blocks = std::min(blocks, left);
    left -= blocks;
  }
  return out;
}

/// Where the page names no number of layers: the multiple of the stages next to the model's size.
/// Heads that are not given are the page's: 96 for hidden 14400, 64 for all later models.
Run run_of(const Row& row) {
  Run out{row, {}, {}};
  Layout& layout = out.layout;
  layout.tensor = row.count("tp");
  layout.pipeline = row.count("pp");
  const double copy = static_cast<double>(layout.tensor * layout.pipeline);
  layout.data = static_cast<std::uint64_t>(
      row.maybe_number("dp").value_or(std::max(1.0, row.number("gpus") / copy)));
  layout.microbatch = row.count("mbs");
  layout.batch = row.count("gbs");
  layout.zero = row.integer("zero_stage") == 0 ? ZeroStage::none : ZeroStage::optimizer;
  layout.recompute = Recompute::full;

  BlockShape& block = out.model.block;
  block.hidden = row.positive("hidden");
  const double stages = static_cast<double>(layout.pipeline);
  const double blocks = row.number("model_b") * 1e9 / (12 * block.hidden * block.hidden);
  out.model.layers = static_cast<std::uint64_t>(
      row.maybe_number("layers").value_or(std::round(blocks / stages) * stages));
  block.heads = row.maybe_number("heads").value_or(block.hidden == 14400 ? 96 : 64);
  block.kv_heads = block.heads;
  block.ffn = 4 * block.hidden;
  block.sequence = row.positive("seq");
  block.vocabulary = row.positive("vocab");
  layout.stage_blocks = stages_of(out.model.layers, layout.pipeline);
  const auto faults = layout_faults(out.model, layout);
  if (!faults.empty()) throw BadTable(row.place() + ": " + faults.front());
  if (const auto time = row.maybe_number("iter_time_s"); time && *time <= 0)
    throw BadTable(row.place() + ": iter_time_s is not above 0");
  return out;
}

/// From "Rebalancing layers" on gradients add up in f32 (the page).
Framework framework_of(const Run& run, double efficiency) {
  return megatron_deepspeed(run.row.text("section") == "Rebalancing layers", efficiency);
}

double predicted_seconds(const Run& run, double efficiency) {
  // Four Omni-Path ports of 100 Gb/s a node.
  static const TrainingCluster cluster = a100_cluster(50e9);
  return step_seconds(run.model, run.layout, framework_of(run, efficiency), cluster).total();
}

std::vector<Run> runs_of(const Table& table, std::vector<std::string>& problems) {
  std::vector<Run> out;
  use_rows(table, problems, [&](const Row& row) { out.push_back(run_of(row)); });
  return out;
}

std::vector<FittedRun> timed_runs(const std::vector<Run>& runs) {
  std::vector<FittedRun> out;
  for (const Run& run : runs) {
    const auto measured = run.row.maybe_number("iter_time_s");
    if (!measured) continue;
    FittedRun one{run.row.text("row_id"), framework_name};
    one.measured = *measured;
    one.flops = device_flops(run.model, run.layout);
    one.predicted = [&run](double efficiency) { return predicted_seconds(run, efficiency); };
    out.push_back(checked(one, 1));
  }
  declare_every_fifth(out);
  return out;
}

std::vector<Score> score_memory(const std::vector<Run>& runs, std::size_t rows) {
  Errors errors;
  std::size_t failed = 0, predicted = 0, alarms = 0;
  for (const Run& run : runs) {
    const std::string& peak = run.row.text("peak_mem_gb");
    if (peak.empty()) continue;
    const double bytes = step_bytes(run.model, run.layout, framework_of(run, 1)).total();
    if (peak == "OOM") {
      ++failed;
      predicted += bytes > device_bytes;
      continue;
    }
    errors.add(bytes / (1024.0 * 1024 * 1024), run.row.number("peak_mem_gb"));
    alarms += bytes > device_bytes;
  }
  Score memory = errors.score("bloom_prequel_a100", "peak memory");
  memory.left_out = rows - errors.count();
  require_mean(memory, 0.10);
  memory.notes = {"nothing fitted"};
  Score verdict;
  verdict.table = "bloom_prequel_a100";
  verdict.quantity = "share of failures not predicted";
  verdict.used = failed;
  verdict.left_out = rows - failed;
  verdict.mean =
      failed == 0 ? 0 : static_cast<double>(failed - predicted) / static_cast<double>(failed);
  verdict.maximum = verdict.mean;
  require_exact(verdict);
  verdict.notes = {
      fmt::format("{} of {} runs that fitted are said to fail", alarms, errors.count())};
  return {memory, verdict};
}

/// The most that plans measured more than once differ by, over all sections: what no model
/// predicts.
double repeat_difference(const std::vector<Run>& runs) {
  using Key = std::tuple<std::vector<double>, std::vector<std::uint64_t>>;
  std::map<Key, std::pair<double, double>> times;  // least and most
  for (const Run& run : runs) {
    const auto time = run.row.maybe_number("iter_time_s");
    if (!time) continue;
    const Layout& layout = run.layout;
    const Key key{{run.model.block.hidden, run.model.block.heads, run.row.number("gpus"),
                   run.row.number("model_b")},
                  {run.model.layers, layout.tensor, layout.pipeline, layout.microbatch,
                   layout.batch, framework_of(run, 1).gradient_bytes > 2 ? 1U : 0U}};
    const auto [at, first] = times.try_emplace(key, *time, *time);
    at->second = {std::min(at->second.first, *time), std::max(at->second.second, *time)};
  }
  double most = 0;
  for (const auto& [key, pair] : times) most = std::max(most, pair.second / pair.first - 1);
  return most;
}

/// Plans of one model on as many nodes with one batch, within a section.
Score score_ranking(const std::vector<Run>& runs, double efficiency, std::size_t rows) {
  using Key = std::tuple<std::string, double, std::uint64_t, double, double, std::uint64_t>;
  using Plan = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;
  const auto measured = [](const Run& run) { return run.row.number("iter_time_s"); };
  std::map<Key, std::map<Plan, const Run*>> groups;  // of a plan measured twice the faster run
  for (const Run& run : runs) {
    if (!run.row.maybe_number("iter_time_s")) continue;
    const Layout& layout = run.layout;
    const Run*& kept = groups[{run.row.text("section"), run.model.block.hidden, run.model.layers,
                               run.model.block.heads, run.row.number("gpus"), layout.batch}]
                             [{layout.tensor, layout.pipeline, layout.microbatch}];
    if (kept == nullptr || measured(run) < measured(*kept)) kept = &run;
  }
  std::size_t compared = 0, used = 0, right = 0;
  double loss = 0;
  for (const auto& [key, group] : groups) {
    if (group.size() < 2) continue;
    const Run* chosen = std::min_element(group.begin(), group.end(), [&](auto& a, auto& b) {
                          return predicted_seconds(*a.second, efficiency) <
                                 predicted_seconds(*b.second, efficiency);
                        })->second;
    const Run* best = std::min_element(group.begin(), group.end(), [&](auto& a, auto& b) {
                        return measured(*a.second) < measured(*b.second);
                      })->second;
    ++compared;
    used += group.size();
    right += chosen == best;
    loss = std::max(loss, measured(*chosen) / measured(*best) - 1);
  }
  Score out;
  out.table = "bloom_prequel_a100";
  out.quantity = "share of groups whose best plan is not first";
  out.used = compared;
  out.left_out = rows - used;
  out.mean = compared == 0 ? 0 : 1 - static_cast<double>(right) / static_cast<double>(compared);
  out.maximum = out.mean;
  require_exact(out);
  out.notes = {fmt::format("first in {} of {} groups of one section, model, number of devices and "
                           "batch; the plan chosen instead is slower by {:.1f} % at most",
                           right, compared, loss * 100),
               fmt::format("plans measured more than once differ by {:.1f} % at most",
                           repeat_difference(runs) * 100)};
  return out;
}

}  // namespace

std::vector<Score> score_bloom(const std::filesystem::path& folder) {
  const std::string name = "bloom_prequel_a100";
  const Table table(folder, name);
  std::vector<std::string> problems;
  const std::vector<Run> runs = runs_of(table, problems);
  const std::vector<FittedRun> timed = timed_runs(runs);
  const FitRange efficiency{0.5, 1.5, 1};
  const FittedValues values = fit_values(timed, efficiency);
  Score time = score_fitted(timed, values, efficiency, name, "step time", table.size());
  require_mean(time, 0.10);
  time.notes = {"one efficiency, on every fifth row: " + to_text(values) +
                "; host time of an op as in vtrain"};
  time.notes.insert(time.notes.end(), problems.begin(), problems.end());
  std::vector<Score> out{time};
  for (Score& score : score_memory(runs, table.size())) out.push_back(std::move(score));
  out.push_back(
      score_ranking(runs, value_of(values, framework_name, efficiency.unfitted), table.size()));
  return out;
}

}  // namespace troupe::published
