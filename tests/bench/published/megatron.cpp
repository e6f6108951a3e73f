// Megatron-LM on A100-80GB: megatron_sc21 (Narayanan et al. 2021) and korthikanti_2022.
#include <fmt/format.h>

#include <map>

#include "tests/bench/published/fit.h"

namespace troupe::published {
namespace {

/// Gradients are kept in f32 and reduced in 16 bits. The host issues fused ops at PyTorch's usual
/// pace.
Framework megatron_lm() {
  Framework out;
  out.host_per_op = 10e-6;
  out.gradient_bytes = 4;
  return out;
}

/// ZeRO-3 of 2021 gathers each tensor by itself, not beside arithmetic.
Framework deepspeed_zero3() {
  Framework out = megatron_lm();
  out.overlaps_gathers = false;
  return out;
}

/// Selene: 8 ports of 200 Gb/s a node. All-reduce among replicas has a bisection bandwidth of
/// 12.9 TB/s on 3072 devices (SC'21, section 5.9): 8.4 GB/s of a port's 25.
TrainingCluster selene() {
  TrainingCluster out = a100_cluster(200e9);
  out.net.ring_achievable = 12.9e12 / (3072 / 2 * 25e9);
  return out;
}

bool complete(const Row& row) {
  for (const char* column : {"layers", "tp", "pp", "dp", "gbs", "mbs"})
    if (!row.maybe_number(column)) return false;
  return true;
}

}  // namespace

namespace {

/// The efficiency of each of two frameworks is fitted.
struct Sc21Run {
  FittedRun run;
  std::string point;  ///< of the comparison of schemes: model and devices; empty: not a part of it
  std::string scheme;
};

std::vector<Sc21Run> sc21_runs(const Table& table, std::vector<std::string>& problems) {
  const TrainingCluster cluster = selene();
  std::vector<Sc21Run> out;
  use_rows(table, problems, [&](const Row& row) {
    if (!complete(row) || !row.maybe_number("iter_time_s_derived")) return;
    const TransformerStack model = gpt_of(row);
    Layout layout = layout_of(row, model);
    layout.chunks = static_cast<std::uint64_t>(row.maybe_number("vp").value_or(1));
    const std::string& scheme = row.text("scheme");
    const bool zero3 = scheme == "ZeRO-3";
    if (zero3) layout.zero = ZeroStage::parameters;
    Sc21Run one;
    one.run = {row.text("row_id"), zero3 ? "A100 fp16 DeepSpeed ZeRO-3" : "A100 fp16 Megatron-LM"};
    one.run.measured = row.number("iter_time_s_derived");
    one.run.flops = device_flops(model, layout);
    one.run.predicted = [=](double efficiency) {
      Framework framework = zero3 ? deepspeed_zero3() : megatron_lm();
      framework.efficiency = efficiency;
      return step_seconds(model, layout, framework, cluster).total();
    };
    if (row.text("table").find("table2") == 0)
      one.point = row.text("model") + " on " + row.text("gpus");
    one.scheme = scheme;
    checked(one.run, 1);
    out.push_back(one);
  });
  return out;
}

std::vector<FittedRun> sc21_fitted_runs(const Table& table, std::vector<std::string>& problems) {
  std::vector<FittedRun> out;
  for (const Sc21Run& one : sc21_runs(table, problems)) out.push_back(one.run);
  declare_every_fifth(out);
  return out;
}

/// At how many points of table 2 the slower of the two schemes is predicted to be slower. Fitting
/// rows count: an order is not what was fitted.
std::pair<std::size_t, std::size_t> orders(const Table& table, const FittedValues& values) {
  struct Pair {
    double predicted = 0, measured = 0;
  };
  std::map<std::string, std::map<std::string, Pair>> compared;
  std::vector<std::string> ignored;
  for (const Sc21Run& one : sc21_runs(table, ignored))
    if (!one.point.empty())
      compared[one.point][one.scheme] = {one.run.predicted(value_of(values, one.run.group, 1)),
                                         one.run.measured};
  std::size_t pairs = 0, right = 0;
  for (const auto& [name, schemes] : compared) {
    const auto zero = schemes.find("ZeRO-3"), pipelined = schemes.find("PTD");
    if (zero == schemes.end() || pipelined == schemes.end()) continue;
    ++pairs;
    right += (zero->second.predicted > pipelined->second.predicted) ==
             (zero->second.measured > pipelined->second.measured);
  }
  return {right, pairs};
}

}  // namespace

std::vector<Score> score_megatron_sc21(const std::filesystem::path& folder) {
  const std::string name = "megatron_sc21";
  const Table table(folder, name);
  const auto runs_of = [&](const std::filesystem::path& from) {
    std::vector<std::string> ignored;
    return sc21_fitted_runs(Table(from, name), ignored);
  };
  const FitRange efficiency{0.5, 1.5, 1};
  const FittedValues values = fit_values(runs_of, folder, efficiency);
  std::vector<std::string> problems;
  Score score = score_fitted(sc21_fitted_runs(table, problems), values, efficiency, name,
                             "step time", table.size());
  score.target = "mean <= 8 %, each row within 15 %";
  if (score.used > 0) score.reached = score.mean <= 0.08 && score.maximum <= 0.15;
  score.notes = {
      "one efficiency for each of two frameworks, on every fifth row: " + to_text(values),
      "rows without a microbatch size left out"};
  const auto [right, pairs] = orders(table, values);
  score.notes.push_back(fmt::format("order against ZeRO-3 right at {} of {} points", right, pairs));
  if (score.used > 0 && right < pairs) score.reached = false;
  score.notes.insert(score.notes.end(), problems.begin(), problems.end());
  return {score};
}

std::vector<Score> score_korthikanti(const std::filesystem::path& folder) {
  const Table table(folder, "korthikanti_2022");
  const TrainingCluster cluster = selene();
  Runs runs;
  Errors kept, selective;
  std::vector<std::string> problems;
  use_rows(table, problems, [&](const Row& row) {
    const std::string& metric = row.text("metric");
    const bool time = metric == "iter_time";
    const bool part = metric == "activation_mem_pct_of_tp_baseline";
    if (!time && !part && metric != "activation_mem_per_gpu") return;
    const TransformerStack model = gpt_of(row);
    Layout layout = layout_of(row, model);
    layout.chunks = row.count("vp");
    layout.sequence_parallel = row.flag("seq_par");
    if (time) {
      runs.add(step_seconds(model, layout, megatron_lm(), cluster).total(), row.number("value"),
               device_flops(model, layout));
      return;
    }
    double bytes = stage_bytes(model, layout, megatron_lm(), 0).activations;
    double unit = static_cast<double>(1_GiB);
    if (part) {
      Layout plain = layout;
      plain.sequence_parallel = false;
      plain.recompute = Recompute::none;
      unit = stage_bytes(model, plain, megatron_lm(), 0).activations / 100;
    }
    (layout.recompute == Recompute::selective ? selective : kept)
        .add(bytes / unit, row.number("value"));
  });
  Score time = runs.score("korthikanti_2022", "step time", table.size());
  require_mean(time, 0.04);
  time.notes.push_back("nothing fitted");
  time.notes.insert(time.notes.end(), problems.begin(), problems.end());
  Score none = kept.score("korthikanti_2022", "activations, none or full recompute");
  require_mean(none, 0.02);
  Score some = selective.score("korthikanti_2022", "activations, selective recompute");
  require_mean(some, 0.09);
  none.left_out = table.size() - kept.count();
  some.left_out = table.size() - selective.count();
  return {time, none, some};
}

}  // namespace troupe::published
