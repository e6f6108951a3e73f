#include "planner/plan_measures.h"

namespace troupe {

std::vector<Seconds> busy_of_devices(const Plan& plan) {
  std::vector<Seconds> busy(plan.memory.size());
  for (const Span& span : plan.timeline.spans) {
    if (span.lane.find('>') != std::string::npos) continue;  // a link
    busy[plan.stages[span.action.stage.index()].device.index()] += span.end - span.begin;
  }
  return busy;
}

}  // namespace troupe
