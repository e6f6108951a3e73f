// bloom_prequel_a100: trials before BLOOM's training, Megatron-DeepSpeed on Jean Zay's nodes of 8
// A100-80GB (bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles-prequel.md).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "tests/bench/published/training_runs.h"

namespace troupe::published {
namespace {

/// The efficiency is calibrated on all rows of the table. Host time of an op as in vtrain.cpp; it
/// adds to the devices' because these runs had CUDA_LAUNCH_BLOCKING=1.
Framework megatron_deepspeed(bool sums_in_f32) {
  Framework out;
  out.efficiency = 0.85;
  out.host_per_op = 38e-6;
  out.waits_for_ops = true;
  // The sharded optimizer also holds its shard of the gradients, in 16 bits and in f32. Kernels
  // take 1573 MiB (the same page); communicators and the allocator's share, and the bytes of
  // the optimizer, are calibrated on all rows.
  out.optimizer_bytes = 4 + 8 + 4 + 2;
  out.gradient_bytes = sums_in_f32 ? 2 + 4 : 2;
  out.logit_bytes = 2 + 4 + 4;
  out.context_bytes = 1573.0 * 1024 * 1024;
  out.unusable_share = 0.15;
  return out;
}

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
  layout.tensor = row.integer("tp");
  layout.pipeline = row.integer("pp");
  const double copy = static_cast<double>(layout.tensor * layout.pipeline);
  layout.data = static_cast<std::uint64_t>(
      row.maybe_number("dp").value_or(std::max(1.0, row.number("gpus") / copy)));
  layout.microbatch = row.integer("mbs");
  layout.batch = row.integer("gbs");
  layout.zero = row.integer("zero_stage") == 0 ? ZeroStage::none : ZeroStage::optimizer;
  layout.recompute = Recompute::full;

  BlockShape& block = out.model.block;
  block.hidden = row.number("hidden");
  const double stages = static_cast<double>(layout.pipeline);
  const double blocks = row.number("model_b") * 1e9 / (12 * block.hidden * block.hidden);
  out.model.layers = static_cast<std::uint64_t>(
      row.maybe_number("layers").value_or(std::round(blocks / stages) * stages));
  block.heads = row.maybe_number("heads").value_or(block.hidden == 14400 ? 96 : 64);
  block.kv_heads = block.heads;
  block.ffn = 4 * block.hidden;
  block.sequence = row.number("seq");
  block.vocabulary = row.number("vocab");
  layout.stage_blocks = stages_of(out.model.layers, layout.pipeline);
  return out;
}

/// From "Rebalancing layers" on gradients add up in f32 (the page).
Framework framework_of(const Run& run) {
  return megatron_deepspeed(run.row.text("section") == "Rebalancing layers");
}

double predicted_seconds(const Run& run) {
  // Four Omni-Path ports of 100 Gb/s a node.
  static const TrainingCluster cluster = a100_cluster(50e9);
  return step_seconds(run.model, run.layout, framework_of(run), cluster).total();
}

Score score_time(const std::vector<Run>& runs, std::size_t rows) {
  Runs compared;
  for (const Run& run : runs)
    if (const auto measured = run.row.maybe_number("iter_time_s"))
      compared.add(predicted_seconds(run), *measured, device_flops(run.model, run.layout));
  Score out = compared.score("bloom_prequel_a100", "step time", rows);
  require_mean(out, 0.10);
  out.notes = {
      "calibrated on all rows of the table: one efficiency; host time of an op as in vtrain"};
  return out;
}

std::vector<Score> score_memory(const std::vector<Run>& runs, std::size_t rows) {
  Errors errors;
  std::size_t failed = 0, predicted = 0, alarms = 0;
  for (const Run& run : runs) {
    const std::string& peak = run.row.text("peak_mem_gb");
    if (peak.empty()) continue;
    const double bytes = step_bytes(run.model, run.layout, framework_of(run)).total();
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
  memory.notes = {"calibrated on all rows: bytes of the optimizer, the allocator's share"};
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

/// Plans of one model on as many nodes with one batch, within a section.
Score score_ranking(const std::vector<Run>& runs, std::size_t rows) {
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
    const Run* chosen = std::min_element(group.begin(), group.end(), [](auto& a, auto& b) {
                          return predicted_seconds(*a.second) < predicted_seconds(*b.second);
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
  out.notes = {
      fmt::format("first in {} of {} groups of one section, model, number of devices and "
                  "batch; the plan chosen instead is slower by {:.1f} % at most",
                  right, compared, loss * 100)};
  return out;
}

}  // namespace

std::vector<Score> score_bloom(const std::filesystem::path& folder) {
  const Table table(folder, "bloom_prequel_a100");
  std::vector<Run> runs;
  for (const Row& row : table.sound_rows()) runs.push_back(run_of(row));
  std::vector<Score> out{score_time(runs, table.size())};
  for (Score& score : score_memory(runs, table.size())) out.push_back(std::move(score));
  out.push_back(score_ranking(runs, table.size()));
  return out;
}

}  // namespace troupe::published
