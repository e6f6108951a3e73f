/// Experts on the older devices, everything else on the newer ones, both sides at work on different
/// microbatches at once.
///
/// Wu et al. 2025 ("HeterMoE", arXiv:2504.03871): zebra parallelism (its order of computation) and
/// asymmetric expert assignment ("gather and squeeze"). M attention devices hold all but the
/// experts, each for its share of the tokens; N expert devices share the experts. Tokens go from
/// attention to experts and back; the two directions do not contend with each other.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/result.h"
#include "planner/units.h"

namespace troupe {

/// Seconds of one layer and one microbatch, on every device of its side at once.
struct ZebraSeconds {
  Seconds attention = 0;  ///< all but the experts
  Seconds experts = 0;    ///< with the experts of the layer shared out over the expert devices
  /// The experts of one expert device, with their tokens, on one attention device.
  Seconds experts_on_attention = 0;
  Seconds exchange = 0;  ///< one direction
  Seconds head = 0;      ///< behind the last layer, on attention devices; once, not by layer
};

struct ZebraProblem {
  std::uint32_t attention_devices = 1, expert_devices = 1;  ///< M and N
  std::uint32_t layers = 1, microbatches = 1;
  std::uint32_t experts = 1;       ///< of a layer
  ZebraSeconds forward, backward;  ///< backward all zero: forward alone
  /// Experts, of all layers together, that one attention device has room for, and that one expert
  /// device must give away to fit into its memory.
  std::uint32_t attention_room = 0, expert_excess = 0;
};

/// The fewest experts of a layer that move: n1 = max(1, N/M) to each attention device, n2 =
/// max(1, M/N) from each expert device. Promise: one of M and N divides the other.
struct ExpertChunk {
  std::uint32_t gained = 1, lost = 1;
};
ExpertChunk expert_chunk(const ZebraProblem& problem);

/// By layer: chunks that attention devices take over. Empty: none.
using ExpertMoves = std::vector<std::uint32_t>;

/// Seconds of a step in the paper's order. Attention devices: forwards layer by layer, microbatches
/// in order; the head's forward and backward in turns; backwards layer by layer. Expert devices:
/// the same, without the head. Experts on attention devices run after all attention of a forward
/// layer and before that of a backward layer. An exchange starts when its tensor is there and its
/// direction is free. Promise: moves for every layer or none; at least one layer and microbatch.
Seconds zebra_seconds(const ZebraProblem& problem, const ExpertMoves& moves = {});

/// The same work without overlap: every layer's attention, exchange, experts, exchange, one
/// microbatch after the other ("DistEP").
Seconds disaggregated_seconds(const ZebraProblem& problem);

/// Gather and squeeze. T_gather = experts - attention: what attention devices wait in a layer.
/// T_squeeze = N/n (experts n2 + experts_on_attention n1): what a chunk takes from that, both ways.
/// Waiting is gathered from layer to layer and squeezed in whole chunks, scaled by
///   alpha = min(floor(room / n1) T_squeeze / (L T_gather), 1)    attention memory
///   beta  = max(ceil(excess / n2) T_squeeze / (L T_gather), 1)   expert memory
/// Times are forward plus backward. Empty where the result would be slower than no move at all, or
/// where neither of M and N divides the other; but what exceeds expert memory is moved in any case
/// (evenly over the layers), if attention devices have room. Errors: does_not_fit: they have not.
Result<ExpertMoves> gather_and_squeeze(const ZebraProblem& problem);

/// One kind of device. Seconds are of one layer (the head: once) and all tokens of one microbatch
/// on one such device.
struct ZebraKind {
  std::uint32_t devices = 0;
  double memory_bytes = 0;
  Seconds attention_forward = 0, attention_backward = 0;
  Seconds experts_forward = 0, experts_backward = 0;
  Seconds head_forward = 0, head_backward = 0;
};

/// A model with experts in every layer, and a step of it.
struct ZebraCosts {
  std::uint32_t layers = 1, microbatches = 1, experts = 1;
  double dense_state_bytes = 0;   ///< of the whole model without experts: on each attention device
  double expert_state_bytes = 0;  ///< of one expert of one layer
  double dense_kept_bytes = 0;    ///< activations beside experts: of a layer, one microbatch
  double expert_kept_bytes = 0;   ///< of the experts of a layer, one microbatch
  double exchange_bytes = 0;      ///< tokens to experts, of a layer, one microbatch, one direction
  BytesPerSecond bandwidth = 0;   ///< of each device's link, one direction
  Seconds latency = 0;            ///< of one exchange
};

struct ZebraPlan {
  std::vector<bool> attention;  ///< by kind: on the attention side
  std::vector<double> shares;   ///< by kind: of its side's work, on each device
  ExpertMoves moves;
  Seconds step = 0;
};

/// The assignment of kinds to sides with the shortest step; devices of a side share its work by
/// their speed, and moves count with their mean. Kinds without devices
/// play no part. Errors: invalid_input for fewer than two kinds with devices or more than sixteen,
/// no layers, microbatches or experts, a number that is negative or not finite; does_not_fit where
/// no assignment fits into memory.
Result<ZebraPlan> plan_zebra(const std::vector<ZebraKind>& kinds, const ZebraCosts& costs);

/// The problem of one assignment. Promise: as plan_zebra; both sides have devices.
ZebraProblem zebra_problem(const std::vector<ZebraKind>& kinds,
                           const ZebraCosts& costs,
                           const std::vector<bool>& attention);

/// Plain expert parallelism: every device has the same share of the tokens and of the experts; each
/// layer's attention, exchange, experts, exchange wait for the slowest kind. Promise: as
/// plan_zebra, but one kind will do.
Seconds expert_parallel_seconds(const std::vector<ZebraKind>& kinds, const ZebraCosts& costs);

}  // namespace troupe
