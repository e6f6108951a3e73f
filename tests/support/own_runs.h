/// Our own runs against their plans: emulated clusters whose devices, memory and links differ,
/// plans of every schedule on them, and what each was predicted and measured to take. A run goes
/// the way of `troupe train`: configuration text, checked values, run_training.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "planner/result.h"
#include "planner/units.h"

namespace troupe::test {

/// One plan of a cluster: what it sets in the cluster's configuration ("plan.schedule=\"gpipe\"").
struct OwnPlan {
  std::string name;  ///< "1f1b m4 auto"
  std::vector<std::string> settings;
};

struct OwnCluster {
  std::string name;
  std::string configuration;  ///< TOML
  bool processes = false;     ///< its nodes are processes
  std::vector<OwnPlan> plans;
};

/// Three clusters in one process (fast links between unlike devices; a device with little memory
/// behind slow links that differ by direction; four devices that are alike but for one) and one of
/// node processes: all trained schedules, several microbatch counts, automatic and pinned plans.
std::vector<OwnCluster> own_clusters();

/// Keeps every `stride`-th plan of each cluster that lives in one process.
std::vector<OwnCluster> thinned(std::vector<OwnCluster> clusters, std::size_t stride);

struct OwnRun {
  std::string cluster, plan;
  Seconds predicted = 0;
  Seconds measured = 0;  ///< median over the steps after the first
  std::uint64_t steps = 0;
};

/// Trains `steps` steps. `node_program`: for clusters of processes.
Result<OwnRun> measure_own_run(const OwnCluster& cluster,
                               const OwnPlan& plan,
                               std::uint64_t steps,
                               const std::string& node_program);

/// All of them; `note` is told of each as it ends. The first error ends it.
Result<std::vector<OwnRun>> measure_own_runs(const std::vector<OwnCluster>& clusters,
                                             std::uint64_t steps,
                                             const std::string& node_program,
                                             const std::function<void(const OwnRun&)>& note);

/// The plan that the predictions choose on one cluster against the best measured there.
struct OwnChoice {
  std::string cluster, chosen, best;
  double ratio = 1;  ///< measured step of the chosen plan over the shortest measured
};

struct OwnScore {
  std::size_t clusters = 0, plans = 0;
  double rank_correlation = 0;  ///< Spearman's, over all plans
  double mean_error = 0;        ///< of |predicted / measured - 1|
  double largest_error = 0;
  double bias = 0;  ///< mean of predicted / measured - 1
  std::vector<OwnChoice> choices;
  double worst_choice() const;
};
/// Promise: there are at least two runs.
OwnScore score_own_runs(const std::vector<OwnRun>& runs);

/// Spearman's rank correlation: Pearson's of the ranks, ties with their mean rank. 0 where one of
/// the two is constant. Promise: equally many, at least two.
double rank_correlation(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace troupe::test
