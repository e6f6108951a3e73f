/// report.html: one self-contained page about a run, made from values.
#pragma once

#include <string>
#include <vector>

#include "actors/launch.h"
#include "actors/run_spec.h"
#include "actors/step_row.h"
#include "planner/plan.h"

namespace troupe {

struct ReportInput {
  RunSpec spec;
  Plan plan;
  ClusterSpec cluster;
  std::vector<StepRow> earlier;  ///< steps before this run was resumed: for the loss curve alone
  std::vector<StepRow> steps;
  std::vector<EvaluationRow> evaluations;
  Timeline played;  ///< of `played_step`; empty: not recorded
  std::uint64_t played_step = 0;
  std::vector<RunEvent> events;
  double unigram_loss = 0;  ///< 0: unknown
  std::string config;       ///< the resolved configuration
};

/// The page. Nothing is loaded from elsewhere; every text from outside is escaped.
std::string report_html(const ReportInput& input);

}  // namespace troupe
