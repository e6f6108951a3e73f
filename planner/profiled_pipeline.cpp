#include "planner/profiled_pipeline.h"

#include <algorithm>
#include <cmath>

#include "planner/schedules.h"
#include "planner/simulate.h"

namespace troupe {

BytesPerSecond BandwidthCurve::at(double bytes) const {
  const double x = std::log2(std::max(bytes, 1.0) / 1e6);
  return std::max(least, std::min(most, ((c2 * x + c1) * x + c0) * 1e9));
}

Seconds message_seconds(const BandwidthCurve& a, const BandwidthCurve& b, double bytes) {
  return bytes / std::min(a.at(bytes), b.at(bytes));
}

std::vector<Seconds> last_backward(const ProfiledReplica& replica, std::uint32_t microbatch_count) {
  const std::size_t stages = replica.stages.size();
  EXPECTS(stages > 0 && microbatch_count > 0 && replica.edges.size() + 1 == stages);
  StageMap map = looped_stages(static_cast<std::uint32_t>(stages), microbatch_count);
  map.transfer_slots = microbatch_count;
  const auto schedule = make_schedule(ScheduleKind::one_f_one_b, map);
  EXPECTS(schedule.ok());
  // What goes hand to hand is part of the actions at both ends; the link lane then takes no time.
  const auto handed = [&](std::size_t edge, bool forward) {
    const ProfiledEdge& link = replica.edges[edge];
    return link.buffered ? 0 : (forward ? link.forward : link.backward);
  };
  const auto seconds = [&](const Action& action) -> Seconds {
    const std::size_t s = action.stage.index();
    const bool forward = action.op == Op::forward;
    switch (action.op) {
      case Op::forward:
      case Op::backward:
        return (forward ? replica.stages[s].forward : replica.stages[s].backward) +
               (s > 0 ? handed(s - 1, forward) : 0) + (s + 1 < stages ? handed(s, forward) : 0);
      case Op::transfer_forward: return replica.edges[s].forward - handed(s, true);
      case Op::transfer_backward: return replica.edges[s - 1].backward - handed(s - 1, false);
      default: return 0;
    }
  };
  std::vector<Seconds> ends(stages, 0);
  for (const Span& span : simulate(*schedule, seconds).spans)
    if (span.action.op == Op::backward)
      ends[span.action.stage.index()] = std::max(ends[span.action.stage.index()], span.end);
  return ends;
}

Seconds step_seconds(const ProfiledPipeline& pipeline) {
  EXPECTS(!pipeline.replicas.empty());
  const std::size_t stages = pipeline.replicas[0].stages.size();
  EXPECTS(pipeline.synchronise.size() == stages);
  std::vector<Seconds> ready(stages, 0);
  std::vector<Seconds> update(stages, 0);
  for (const ProfiledReplica& replica : pipeline.replicas) {
    EXPECTS(replica.stages.size() == stages);
    const std::vector<Seconds> ends = last_backward(replica, pipeline.microbatch_count);
    for (std::size_t s = 0; s < stages; ++s) {
      ready[s] = std::max(ready[s], ends[s]);
      update[s] = std::max(update[s], replica.stages[s].update);
    }
  }
  Seconds last = 0;
  for (std::size_t s = 0; s < stages; ++s)
    last = std::max(last, ready[s] + pipeline.synchronise[s] + update[s]);
  return last;
}

Seconds ring_all_reduce_seconds(BytesPerSecond slowest, double bytes, std::uint32_t replicas) {
  if (replicas < 2) return 0;
  const auto n = static_cast<double>(replicas);
  return 2 * (n - 1) / n * bytes / slowest;
}

double fullest_stage_bytes(const std::vector<double>& parameter_bytes,
                           const std::vector<double>& activation_bytes,
                           std::uint32_t microbatch_count,
                           const MemoryAllowance& allowance) {
  EXPECTS(parameter_bytes.size() == activation_bytes.size());
  double most = 0;
  for (std::size_t s = 0; s < parameter_bytes.size(); ++s) {
    const auto in_flight = std::min<std::size_t>(microbatch_count, parameter_bytes.size() - s);
    most = std::max(most,
                    4 * parameter_bytes[s] + static_cast<double>(in_flight) * activation_bytes[s]);
  }
  return allowance.context_bytes + (1 + allowance.fragmentation) * most;
}

}  // namespace troupe
