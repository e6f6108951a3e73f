/// The state of a step that is played without costs: what has finished, and the transfers, which
/// are instant here. Makers use it to find a legal order, lowering to order each link's transfers.
#pragma once

#include <vector>

#include "planner/prerequisites.h"
#include "planner/schedule.h"

namespace troupe {

class DryRun {
 public:
  DryRun(const StageMap& stages, bool split_backward);

  bool ready(const Action& action) const;
  bool finished(const Action& action) const { return finished_.contains(action); }
  /// Marks a compute action as finished, and sends what can be sent now.
  void finish(const Action& action);
  /// Links in order of their first transfer's sender and receiver, transfers in the order sent.
  std::vector<LinkLane> take_links();
  /// Unit cost of a compute action: F, I and W take 1, B takes 2.
  static std::uint64_t ticks(const Action& action) {
    return action.op == Op::backward ? 2 : action.op == Op::norm || action.op == Op::update ? 0 : 1;
  }

 private:
  void try_send(Op op, std::uint32_t stage, std::uint32_t microbatch);

  StageMap stages_;
  bool split_backward_;
  ActionSet finished_;
  std::vector<LinkLane> links_;
};

}  // namespace troupe
