// Splits of published graphs: partition_oracle_results (Tarnawski et al. 2020) and
// piper_oracle_results (Tarnawski et al. 2021). Nothing is fitted.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "tests/bench/published/score.h"
#include "tests/support/partition_tables.h"

namespace troupe::published {
namespace {

template <class Read>
auto read_graphs(const std::filesystem::path& folder,
                 const std::string& nodes,
                 const std::string& edges,
                 Read read) {
  const Table node_table(folder, nodes), edge_table(folder, edges);
  try {
    return read(node_table, edge_table);
  } catch (const BadTable&) {
    throw;
  } catch (const std::exception& error) {
    throw BadTable(nodes + " and " + edges + ": " + error.what());
  }
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::vector<Score> score_partition_oracle(const std::filesystem::path& folder) {
  const auto graphs = read_graphs(folder, "partition_oracle_nodes", "partition_oracle_edges",
                                  testing::read_partition_graphs);
  const Table table(folder, "partition_oracle_results");
  Errors optimal, single, gain;
  std::size_t others = 0;
  double longest = 0;
  for (const Row& row : table.sound_rows()) {
    const auto graph = graphs.find(row.text("workload"));
    if (graph == graphs.end()) throw BadTable(row.place() + ": the workload has no nodes");
    const auto& algorithm = row.text("algorithm");
    if (algorithm == "oneFpga") {
      const auto priced =
          price_partition(graph->second, std::vector<std::uint32_t>(graph->second.nodes.size(), 0));
      if (!priced) throw BadTable(row.place() + ": " + priced.error().text);
      single.add(priced->max_load, row.number("max_load"));
      continue;
    }
    GraphPartitionOptions options;
    options.devices = static_cast<std::uint32_t>(row.integer("accelerators"));
    // The published inputs have one processor beside the accelerators; the table does not say so.
    options.hosts = 1;
    options.memory_bytes = row.number("mem_limit_bytes");
    const auto start = std::chrono::steady_clock::now();
    const auto found = partition_contiguous(graph->second, options);
    if (!found) throw BadTable(row.place() + ": " + found.error().text);
    if (algorithm == "optimal_dp") {
      longest = std::max(longest, seconds_since(start));
      optimal.add(found->max_load, row.number("max_load"));
    } else {
      ++others;
      gain.add(found->max_load, row.number("max_load"));
    }
  }
  Score best = optimal.score("partition_oracle_results", "load of the optimum");
  best.left_out = table.size() - optimal.count();
  require_exact(best, 1e-6);
  best.notes.push_back(fmt::format("the slowest search took {:.2f} s", longest));
  Score one = single.score("partition_oracle_results", "load of one device");
  one.left_out = table.size() - single.count();
  require_exact(one, 5e-6);  // printed with six digits
  Score against = gain.score("partition_oracle_results", "optimum against other planners");
  against.left_out = table.size() - others;
  against.notes.push_back("PipeDream's planner and human experts; negative: our split is better");
  return {best, one, against};
}

std::vector<Score> score_piper_oracle(const std::filesystem::path& folder) {
  const auto graphs = read_graphs(folder, "piper_bert32_profile", "piper_bert32_edges",
                                  [](const auto& profile, const auto& edges) {
                                    return testing::read_layer_graphs(profile, edges);
                                  });
  const Table table(folder, "piper_oracle_results");
  Errors time;
  std::size_t verdicts = 0, wrong = 0;
  double longest = 0;
  std::vector<std::string> notes;
  for (const Row& row : table.sound_rows()) {
    const auto graph = graphs.find(row.text("workload"));
    if (graph == graphs.end()) throw BadTable(row.place() + ": the workload has no profile");
    constexpr double gib = 1024.0 * 1024 * 1024;
    StageOptions options;
    options.devices = static_cast<std::uint32_t>(row.integer("devices"));
    options.memory_bytes = row.number("mem_limit_gib") * gib;
    options.bandwidth = row.number("bandwidth_gib_s") * gib;
    options.microbatches = static_cast<std::uint32_t>(row.integer("microbatches"));
    const auto start = std::chrono::steady_clock::now();
    const auto plan = plan_stages(graph->second, options);
    longest = std::max(longest, seconds_since(start));
    if (!plan && plan.error().code != ErrorCode::does_not_fit)
      throw BadTable(row.place() + ": " + plan.error().text);
    ++verdicts;
    if (plan.ok() != (row.text("status") == "ok")) {
      ++wrong;
      notes.push_back(row.place() + ": " + (plan.ok() ? "we found a plan" : "we found no plan"));
    } else if (plan.ok()) {
      time.add(plan->time_per_microbatch, row.number("time_per_sample_s"));
    }
  }
  Score feasible;
  feasible.table = "piper_oracle_results";
  feasible.quantity = "share of wrong verdicts on what fits";
  feasible.used = verdicts;
  feasible.left_out = table.size() - verdicts;
  feasible.mean = feasible.maximum = feasible.bias =
      verdicts == 0 ? 0 : static_cast<double>(wrong) / static_cast<double>(verdicts);
  require_exact(feasible);
  feasible.notes = notes;
  Score cost = time.score("piper_oracle_results", "time of the slowest stage");
  cost.left_out = table.size() - time.count();
  require_exact(cost, 0.03);
  cost.notes.push_back(fmt::format("the slowest search took {:.2f} s", longest));
  return {feasible, cost};
}

}  // namespace troupe::published
