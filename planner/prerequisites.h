/// The data flow of one step, as a visitor: the body behind `prerequisites()` for those that must
/// not allocate (cursors, dry runs). There is no second place that knows what waits for what.
#pragma once

#include <cstdint>

#include "planner/schedule.h"

namespace troupe {

/// The stage at the other end of a tied table, where `stage` is one end of its chain and the ends
/// differ.
inline std::optional<StageId> other_tied_end(StageId stage, const StageMap& stages) {
  const std::uint32_t length = stages.chain_length();
  if (!stages.tied || length == 1) return std::nullopt;
  if (stages.starts_chain(stage.value)) return StageId{stage.value + length - 1};
  if (stages.ends_chain(stage.value)) return StageId{stage.value + 1 - length};
  return std::nullopt;
}

inline bool same_device(std::uint32_t stage, std::uint32_t other, const StageMap& stages) {
  return stages.device_of_stage[stage] == stages.device_of_stage[other];
}

/// Calls `visit(Action)` for each prerequisite of `action`, in a fixed order, until it says false.
template <class Visit>
void for_each_prerequisite(const Action& action,
                           const StageMap& stages,
                           bool split_backward,
                           Visit&& visit) {
  const std::uint32_t s = action.stage.value;
  const std::uint32_t m = action.microbatch.value;
  const bool first = stages.starts_chain(s);
  const std::uint32_t slots = stages.transfer_slots;
  const Op input = split_backward ? Op::backward_input : Op::backward;
  const auto at = [](Op op, std::uint32_t stage, std::uint32_t microbatch) {
    return Action{op, StageId{stage}, MicrobatchId{microbatch}};
  };
  switch (action.op) {
    case Op::forward:
      if (!first)
        visit(same_device(s, s - 1, stages) ? at(Op::forward, s - 1, m)
                                            : at(Op::transfer_forward, s - 1, m));
      return;
    case Op::backward:
    case Op::backward_input:
      if (!visit(at(Op::forward, s, m))) return;
      if (!stages.ends_chain(s) &&
          !visit(same_device(s, s + 1, stages) ? at(input, s + 1, m)
                                               : at(Op::transfer_backward, s + 1, m)))
        return;
      if (!first && m >= slots)
        visit(same_device(s, s - 1, stages) ? at(input, s - 1, m - slots)
                                            : at(Op::transfer_backward, s, m - slots));
      return;
    case Op::backward_weight: visit(at(Op::backward_input, s, m)); return;
    case Op::transfer_forward:
      if (!visit(at(Op::forward, s, m))) return;
      if (m >= slots) visit(at(Op::forward, s + 1, m - slots));
      return;
    case Op::transfer_backward:
      if (!visit(at(input, s, m))) return;
      if (m >= slots) visit(at(input, s - 1, m - slots));
      return;
    case Op::transfer_tied: visit(at(input, s, stages.microbatch_count - 1)); return;
    case Op::norm: {
      const Op final_op = split_backward ? Op::backward_weight : Op::backward;
      for (std::uint32_t i = stages.microbatch_count; i-- > 0;)
        if (!visit(at(final_op, s, i))) return;
      const auto other = other_tied_end(action.stage, stages);
      if (!other) return;
      if (same_device(s, other->value, stages)) {
        visit(at(input, other->value, stages.microbatch_count - 1));
        return;
      }
      // N adds the other half to the own one in place, so the own one must have left before.
      if (!visit(at(Op::transfer_tied, s, 0))) return;
      visit(at(Op::transfer_tied, other->value, 0));
      return;
    }
    case Op::update:
      for (std::uint32_t i = 0; i < stages.stage_count(); ++i)
        if (!visit(at(Op::norm, i, 0))) return;
      return;
  }
}

/// Actions as dense numbers, for bit maps: every action of a step with these stages has its own.
class ActionIndex {
 public:
  explicit ActionIndex(const StageMap& stages)
      : stages_(stages.stage_count()), microbatches_(stages.microbatch_count) {}
  std::size_t size() const { return std::size_t{9} * stages_ * microbatches_; }
  std::size_t of(const Action& action) const {
    return (static_cast<std::size_t>(action.op) * stages_ + action.stage.index()) * microbatches_ +
           action.microbatch.index();
  }

 private:
  std::size_t stages_;
  std::size_t microbatches_;
};

/// A set of actions of one step.
class ActionSet {
 public:
  explicit ActionSet(const StageMap& stages) : index_(stages), bits_((index_.size() + 63) / 64) {}
  bool contains(const Action& action) const {
    const std::size_t i = index_.of(action);
    return (bits_[i / 64] >> (i % 64) & 1) != 0;
  }
  void insert(const Action& action) {
    const std::size_t i = index_.of(action);
    bits_[i / 64] |= std::uint64_t{1} << (i % 64);
  }
  void clear() { bits_.assign(bits_.size(), 0); }

 private:
  ActionIndex index_;
  std::vector<std::uint64_t> bits_;
};

}  // namespace troupe
