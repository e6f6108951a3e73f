// InternEvo: internevo_7b_a100 (throughput under ZeRO-1 in groups) and internevo_memory.
#include "tests/bench/published/architecture_runs.h"
#include "tests/bench/published/fit.h"

namespace troupe::published {
namespace {

/// InternLM-7B and -20B (InternEvo, configs/7B_sft.py and the InternLM-20B model card): Llama's
/// block, in the 7B model with biases in attention.
Architecture internlm_of(const Row& row) {
  const std::string& name = row.text("model");
  const bool large = name == "InternLM-20B";
  if (!large && name != "InternLM-7B")
    throw BadTable(row.place() + ": model " + name + " is neither InternLM-7B nor InternLM-20B");
  Architecture out;
  out.family = "internlm";
  out.blocks = large ? 60 : 32;
  out.width = large ? 5120 : 4096;
  out.attention.heads = out.attention.kv_heads = out.width / 128;
  out.attention.head_width = 128;
  out.attention.qkv_bias = out.attention.out_bias = !large;
  out.ffn_width = large ? 13824 : 11008;
  out.vocabulary = 103168;
  out.context = 2048;
  return out;
}

Layout layout_of(const Row& row) {
  Layout out;
  out.tensor = row.count("tp");
  out.microbatch = row.count("mbs");
  out.flash_attention = out.causal = true;
  out.recompute = row.text("recompute") == "full" ? Recompute::full : Recompute::none;
  return out;
}

void divide(Layout& layout, const Row& row) {
  layout.data = row.count("gpus") / (layout.tensor * layout.pipeline);
  layout.batch = row.count("grad_accum") * layout.data * layout.microbatch;
  const double group = row.number("zero1_group");
  if (group > 0) layout.shard_group = static_cast<std::uint64_t>(group);
}

/// The hybrid ZeRO optimizer (internlm/solver/optimizer/hybrid_zero_optim.py): gradients are
/// all-reduced beside the last backward, each rank broadcasts what it has updated. update_start is
/// the one fitted value: what a step takes besides its microbatches (norms, overflow checks, copies
/// of buckets, waiting for the host).
Framework internevo(Seconds update_start) {
  Framework out;
  out.update_start = update_start;
  out.reduced_whole = out.owners_broadcast = out.reduction_hidden = true;
  return out;
}

std::vector<FittedRun> runs_of(const Table& table, std::vector<std::string>& problems) {
  TrainingCluster cluster = a100_cluster(50e9);  // 4 x 100 Gb/s a node
  cluster.device = a100_rates(2.039e12);
  std::vector<FittedRun> out;
  use_rows(table, problems, [&](const Row& row) {
    const ArchitectureRun run{internlm_of(row), row.positive("seq")};
    Layout layout = layout_of(row);
    divide(layout, row);
    layout.zero = ZeroStage::optimizer;
    checked(row, run, layout);
    FittedRun one{row.text("row_id"), "A100 bf16 InternEvo"};
    one.measured = run.sequence * static_cast<double>(layout.batch) /
                   static_cast<double>(row.count("gpus")) / row.positive("tokens_per_s_gpu");
    one.flops = device_flops(run, layout);
    one.predicted = [=](double update_start) {
      return step_seconds(run, layout, internevo(update_start), cluster).total();
    };
    out.push_back(checked(one, Framework{}.update_start));
  });
  declare_every_fifth(out);
  return out;
}

}  // namespace

std::vector<Score> score_internevo(const std::filesystem::path& folder) {
  const std::string name = "internevo_7b_a100";
  const Table table(folder, name);
  const auto from = [&](const std::filesystem::path& at) {
    std::vector<std::string> ignored;
    return runs_of(Table(at, name), ignored);
  };
  const FitRange seconds{0.01, 10, Framework{}.update_start};
  const FittedValues values = fit_values(from, folder, seconds);
  std::vector<std::string> problems;
  Score score =
      score_fitted(runs_of(table, problems), values, seconds, name, "step time", table.size());
  require_mean(score, 0.08);
  score.notes.push_back(
      "one value, seconds of a step besides its microbatches, on every fifth row: " +
      to_text(values));
  score.notes.insert(score.notes.end(), problems.begin(), problems.end());
  return {score};
}

std::vector<Score> score_internevo_memory(const std::filesystem::path& folder) {
  const Table table(folder, "internevo_memory");
  Errors errors;
  std::vector<std::string> problems;
  use_rows(table, problems, [&](const Row& row) {
    const ArchitectureRun run{internlm_of(row), 2048};
    Layout layout = layout_of(row);
    layout.pipeline = row.count("pp");
    divide(layout, row);
    const bool fsdp = row.flag("fsdp");
    layout.zero = fsdp ? ZeroStage::parameters : ZeroStage::optimizer;
    // f32 copies of weights and two moments, 16-bit weights and gradients. While it steps: f32
    // gradients (4), the root of the second moment and its quotient (8); without FSDP they are of
    // one flat tensor, for which 16-bit gradients are copied (2).
    Framework framework;
    framework.step_bytes = fsdp ? 12 : 14;
    framework.context_bytes = 1e9;
    checked(row, run, layout);
    errors.add(step_bytes(run, layout, framework).total() / 1e9, row.number("peak_mem_gb"));
  });
  Score score = errors.score("internevo_memory", "peak memory");
  score.left_out = table.size() - errors.count();
  require_mean(score, 0.08);
  score.notes.push_back("nothing fitted");
  score.notes.insert(score.notes.end(), problems.begin(), problems.end());
  return {score};
}

}  // namespace troupe::published
