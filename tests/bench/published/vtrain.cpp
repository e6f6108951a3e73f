// Megatron-DeepSpeed on nodes of 8 A100: vtrain_single_node_a100, vtrain_multi_node_a100, and the
// all-reduce times of the same machines.
#include "tests/bench/published/training_runs.h"

namespace troupe::published {
namespace {

/// Megatron-DeepSpeed issues some 2,600 ops a second and layer with checkpoints and their random
/// states. Fitted: on the rows of vtrain_single_node_a100 with hidden 1024 and microbatch 1, whose
/// devices wait for the host. Nothing else here is.
Framework megatron_deepspeed() {
  Framework out;
  out.host_per_op = 38e-6;
  return out;
}

Score score_runs(const Table& table, const std::string& name, double most) {
  const TrainingCluster cluster = a100_cluster();
  const Framework framework = megatron_deepspeed();
  Runs runs;
  for (const Row& row : table.sound_rows()) {
    const TransformerStack model = gpt_of(row);
    const Layout layout = layout_of(row, model);
    runs.add(step_seconds(model, layout, framework, cluster).total(),
             row.number("iter_time_ms") / 1e3, device_flops(model, layout));
  }
  Score score = runs.score(name, "step time", table.size());
  require_mean(score, most);
  score.notes.push_back(
      "one fitted value, host time of an op: on single-node rows of hidden 1024, microbatch 1");
  return score;
}

}  // namespace

std::vector<Score> score_vtrain_single(const std::filesystem::path& folder) {
  const std::string name = "vtrain_single_node_a100";
  return {score_runs(Table(folder, name), name, 0.084)};
}

std::vector<Score> score_vtrain_multi(const std::filesystem::path& folder) {
  const std::string name = "vtrain_multi_node_a100";
  return {score_runs(Table(folder, name), name, 0.147)};
}

std::vector<Score> score_vtrain_all_reduce(const std::filesystem::path& folder) {
  const Table table(folder, "vtrain_nccl_allreduce");
  const Interconnect net = a100_cluster().net;
  Errors errors;
  for (const Row& row : table.sound_rows())
    if (row.text("gpu") == "A100" && row.text("op") == "all_reduce")
      errors.add(all_reduce_seconds(row.number("bytes"), {row.number("gpus"), true, 1}, net),
                 row.number("time_ns") / 1e9);
  Score score = errors.score("vtrain_nccl_allreduce", "all-reduce time, A100");
  score.left_out = table.size() - errors.count();
  score.median = errors.median();
  score.notes.push_back("rows of V100 left out");
  return {score};
}

}  // namespace troupe::published
