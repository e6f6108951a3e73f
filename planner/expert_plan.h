/// Which device has which part of a model with experts, and what a step then takes.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/ids.h"
#include "planner/units.h"
#include "planner/zebra.h"

namespace troupe {

/// What one device does and holds.
struct ExpertDevice {
  /// Sequences of a round whose tokens it takes through everything but the experts. 0: it has none
  /// of the dense weights either.
  std::uint32_t sequences = 0;
  double share = 0;                    ///< of the tokens of a step
  std::vector<std::uint32_t> experts;  ///< by layer with experts: how many it holds
  Seconds busy = 0;                    ///< computing, of a step
  Bytes bytes = 0;                     ///< at the peak
  bool holds_experts() const;
  bool used() const { return sequences > 0 || holds_experts(); }
};

/// Attention and everything else that is dense is replicated on the devices that have sequences;
/// the experts of each layer are divided over those that hold some.
struct ExpertPlan {
  bool zebra = false;                 ///< the two on different devices, at work at once
  std::uint32_t round = 1;            ///< sequences that are on their way together
  std::uint32_t rounds = 1;           ///< of a step; the last may be smaller
  std::uint32_t passes = 1;           ///< zebra: rounds are forwarded together, in so many parts
  std::vector<ExpertDevice> devices;  ///< by DeviceId
  /// Zebra: by layer, chunks of experts that attention devices took over. Empty: none.
  ExpertMoves moves;
  Seconds exchange = 0;  ///< of a round's tokens, one layer, one direction
  Seconds reduce = 0;    ///< the sum of dense gradients, once a step
  Seconds update = 0;    ///< norm and optimizer on the device that is last
  Seconds step = 0;      ///< all of it
};

}  // namespace troupe
