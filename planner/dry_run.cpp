#include "planner/dry_run.h"

#include <algorithm>
#include <tuple>

namespace troupe {

DryRun::DryRun(const StageMap& stages, bool split_backward)
    : stages_(stages), split_backward_(split_backward), finished_(stages) {}

bool DryRun::ready(const Action& action) const {
  bool all = true;
  for_each_prerequisite(action, stages_, split_backward_, [&](const Action& prerequisite) {
    return all = finished_.contains(prerequisite);
  });
  return all;
}

void DryRun::try_send(Op op, std::uint32_t stage, std::uint32_t microbatch) {
  const std::uint32_t last = stages_.stage_count() - 1;
  const Action transfer{op, StageId{stage}, MicrobatchId{microbatch}};
  if (microbatch >= stages_.microbatch_count || stage > last) return;
  std::uint32_t peer = stage;
  if (op == Op::transfer_forward && !stages_.ends_chain(stage)) peer = stage + 1;
  if (op == Op::transfer_backward && !stages_.starts_chain(stage)) peer = stage - 1;
  if (op == Op::transfer_tied)
    if (const auto other = other_tied_end(StageId{stage}, stages_)) peer = other->value;
  if (same_device(stage, peer, stages_)) return;
  if (finished_.contains(transfer) || !ready(transfer)) return;
  finished_.insert(transfer);
  const DeviceId from = stages_.device_of_stage[stage];
  const DeviceId to = stages_.device_of_stage[peer];
  auto link = std::find_if(links_.begin(), links_.end(),
                           [&](auto& l) { return l.from == from && l.to == to; });
  if (link == links_.end()) link = links_.insert(links_.end(), LinkLane{from, to, {}});
  link->actions.push_back(transfer);
}

void DryRun::finish(const Action& action) {
  finished_.insert(action);
  const std::uint32_t s = action.stage.value;
  const std::uint32_t m = action.microbatch.value;
  const std::uint32_t slots = stages_.transfer_slots;
  if (action.op == Op::forward) {
    try_send(Op::transfer_forward, s, m);
    if (!stages_.starts_chain(s)) try_send(Op::transfer_forward, s - 1, m + slots);
  }
  if (action.op == Op::backward || action.op == Op::backward_input) {
    try_send(Op::transfer_backward, s, m);
    if (!stages_.ends_chain(s)) try_send(Op::transfer_backward, s + 1, m + slots);
    try_send(Op::transfer_tied, s, 0);
  }
}

std::vector<LinkLane> DryRun::take_links() {
  std::sort(links_.begin(), links_.end(), [](const LinkLane& a, const LinkLane& b) {
    return std::tie(a.from, a.to) < std::tie(b.from, b.to);
  });
  return std::move(links_);
}

}  // namespace troupe
