// Predicted against measured step times of our own runs, over plans of emulated clusters:
//   bench_own_runs [--json] [--steps N] [--thin STRIDE] [CLUSTER...]
// The machine should be idle. Exit code 1: a target was not reached.
#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/table.h"
#include "tests/support/own_runs.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr double least_correlation = 0.95;
constexpr double most_error = 0.05;
constexpr double worst_choice = 1.03;

bool reached(const OwnScore& score) {
  return score.rank_correlation >= least_correlation && score.mean_error <= most_error &&
         score.worst_choice() <= worst_choice;
}

Table table_of(const std::vector<OwnRun>& runs) {
  Table table({{"cluster", "cluster", false},
               {"plan", "plan", false},
               {"predicted", "predicted_seconds", true},
               {"measured", "measured_seconds", true},
               {"error", "error", true}});
  for (const OwnRun& run : runs) {
    const double error = run.predicted / run.measured - 1;
    table.add({{run.cluster, run.cluster},
               {run.plan, run.plan},
               {format_seconds(run.predicted), run.predicted},
               {format_seconds(run.measured), run.measured},
               {fmt::format("{:+.2f} %", 100 * error), error}});
  }
  return table;
}

void print_json(const std::vector<OwnRun>& runs, const OwnScore& score) {
  nlohmann::ordered_json out;
  out["clusters"] = score.clusters;
  out["plans"] = score.plans;
  out["rank_correlation"] = score.rank_correlation;
  out["mean_error"] = score.mean_error;
  out["largest_error"] = score.largest_error;
  out["bias"] = score.bias;
  for (const OwnChoice& one : score.choices)
    out["choices"].push_back({{"cluster", one.cluster},
                              {"chosen", one.chosen},
                              {"best", one.best},
                              {"ratio", one.ratio}});
  out["targets"] = {{"rank_correlation", least_correlation},
                    {"mean_error", most_error},
                    {"choice_ratio", worst_choice}};
  out["reached"] = reached(score);
  out["runs"] = table_of(runs).to_json();
  fmt::print("{}\n", out.dump(2));
}

void print_text(const std::vector<OwnRun>& runs, const OwnScore& score) {
  fmt::print("{}\n{} plans of {} clusters, {} steps each, median without the first\n",
             table_of(runs).to_text(), score.plans, score.clusters, runs.front().steps);
  fmt::print("rank correlation  {:.4f} (Spearman)  target at least {}\n", score.rank_correlation,
             least_correlation);
  fmt::print("mean error        {:.2f} %, largest {:.2f} %, bias {:+.2f} %  target at most {} %\n",
             100 * score.mean_error, 100 * score.largest_error, 100 * score.bias, 100 * most_error);
  for (const OwnChoice& one : score.choices)
    fmt::print("{}: chosen {}, best {}: {:.4f} x  target at most {}\n", one.cluster, one.chosen,
               one.best, one.ratio, worst_choice);
  fmt::print("reached: {}\n", reached(score) ? "yes" : "no");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Predicted against measured step times over plans of emulated clusters.");
  bool json = false;
  std::uint64_t steps = 6;
  std::size_t stride = 0;
  std::vector<std::string> wanted;
  app.add_flag("--json", json, "Print the score and all runs as JSON");
  app.add_option("--steps", steps, "Steps of each run; the first is left out")
      ->check(CLI::Range(2, 1000));
  app.add_option("--thin", stride, "Every so-manieth plan of clusters in one process alone")
      ->check(CLI::Range(1, 16));
  app.add_option("CLUSTER", wanted, "These clusters alone");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  std::vector<OwnCluster> clusters = own_clusters();
  for (const std::string& name : wanted)
    if (std::none_of(clusters.begin(), clusters.end(),
                     [&](const OwnCluster& cluster) { return cluster.name == name; })) {
      std::string known;
      for (const OwnCluster& cluster : clusters) known += " " + cluster.name;
      fmt::print(stderr, "error: there is no cluster \"{}\"; there are:{}\n", name, known);
      return 2;
    }
  std::erase_if(clusters, [&](const OwnCluster& cluster) {
    return !wanted.empty() && std::find(wanted.begin(), wanted.end(), cluster.name) == wanted.end();
  });
  if (stride != 0) clusters = thinned(std::move(clusters), stride);
  const auto runs =
      measure_own_runs(clusters, steps, TROUPE_BINARY_DIR "/troupe", [](const OwnRun& run) {
        fmt::print(stderr, "{}, {}: predicted {}, measured {}\n", run.cluster, run.plan,
                   format_seconds(run.predicted), format_seconds(run.measured));
      });
  if (!runs) {
    fmt::print(stderr, "error: {}\n", runs.error().text);
    return 1;
  }
  const OwnScore score = score_own_runs(*runs);
  if (json)
    print_json(*runs, score);
  else
    print_text(*runs, score);
  return reached(score) ? 0 : 1;
}
