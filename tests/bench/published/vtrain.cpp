// Megatron-DeepSpeed on nodes of 8 A100: vtrain_single_node_a100, vtrain_multi_node_a100, and the
// all-reduce times of the same machines.
#include "tests/bench/published/fit.h"

namespace troupe::published {
namespace {

constexpr const char* single_node = "vtrain_single_node_a100";
const FitRange host_seconds{1e-6, 200e-6, eager_host_per_op};
constexpr const char* multi_node = "vtrain_multi_node_a100";

/// The one fitted value of both tables is the host's time of an op. Fitting data are rows of the
/// single-node table.
std::vector<FittedRun> runs_of(const Table& table,
                               bool single,
                               std::vector<std::string>& problems) {
  const TrainingCluster cluster = a100_cluster();
  std::vector<FittedRun> out;
  use_rows(table, problems, [&](const Row& row) {
    const TransformerStack model = gpt_of(row);
    const Layout layout = layout_of(row, model);
    FittedRun one{row.text("row_id"), "A100 fp16 Megatron-DeepSpeed"};
    one.measured = row.positive("iter_time_ms") / 1e3;
    one.flops = device_flops(model, layout);
    one.predicted = [=](double host_per_op) {
      Framework framework;
      framework.host_per_op = host_per_op;
      return step_seconds(model, layout, framework, cluster).total();
    };
    out.push_back(checked(one, host_seconds.unfitted));
  });
  if (single) declare_every_fifth(out);
  return out;
}

FittedValues fitted_host(const std::filesystem::path& folder) {
  const auto from = [](const std::filesystem::path& at) {
    std::vector<std::string> ignored;
    return runs_of(Table(at, single_node), true, ignored);
  };
  return fit_values(from, folder, host_seconds);
}

Score score_runs(const Table& table, const char* name, const FittedValues& values, double most) {
  std::vector<std::string> problems;
  const auto runs = runs_of(table, name == single_node, problems);
  Score score = score_fitted(runs, values, host_seconds, name, "step time", table.size());
  require_mean(score, most);
  score.notes.push_back(
      "one value, seconds of the host for an op, on every fifth row of the single-node table: " +
      to_text(values));
  score.notes.insert(score.notes.end(), problems.begin(), problems.end());
  return score;
}

}  // namespace

std::vector<Score> score_vtrain_single(const std::filesystem::path& folder) {
  const Table table(folder, single_node);
  return {score_runs(table, single_node, fitted_host(folder), 0.084)};
}

/// On the single-node table of the same folder; where it has none, on the project's own.
std::vector<Score> score_vtrain_multi(const std::filesystem::path& folder) {
  const Table table(folder, multi_node);
  const bool complete = std::filesystem::exists(folder / (std::string(single_node) + ".csv"));
  return {score_runs(table, multi_node, fitted_host(complete ? folder : own_folder()), 0.147)};
}

std::vector<Score> score_vtrain_all_reduce(const std::filesystem::path& folder) {
  const Table table(folder, "vtrain_nccl_allreduce");
  const Interconnect net = a100_cluster().net;
  Errors errors;
  std::vector<std::string> problems;
  use_rows(table, problems, [&](const Row& row) {
    if (row.text("gpu") == "A100" && row.text("op") == "all_reduce")
      errors.add(all_reduce_seconds(row.number("bytes"),
                                    {static_cast<double>(row.count("gpus")), true, 1}, net),
                 row.number("time_ns") / 1e9);
  });
  Score score = errors.score("vtrain_nccl_allreduce", "all-reduce time, A100");
  score.left_out = table.size() - errors.count();
  score.median = errors.median();
  score.notes.push_back("rows of V100 left out");
  score.notes.insert(score.notes.end(), problems.begin(), problems.end());
  return {score};
}

}  // namespace troupe::published
