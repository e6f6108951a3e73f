/// The routed experts of a model's blocks, apart from what every token meets.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/cost.h"

namespace troupe {

/// What a block's routed experts are of its LayerProfile; the rest of the block (attention, norms,
/// router, shared experts) is the profile less this. The same in every block that has any.
struct ExpertPart {
  std::vector<std::uint32_t> blocks;  ///< that have experts, rising; 0 is the first block
  std::uint32_t experts = 0;          ///< of a block
  std::uint32_t top_k = 0;            ///< that a token goes to
  /// All experts of a block, one microbatch, as many tokens for each.
  OpCount forward, backward_input, backward_weight;
  /// One expert, once a step: its part of the gradient's norm and the optimizer.
  OpCount norm, update;
  Bytes state_bytes = 0;     ///< of one expert: weights, gradients and optimizer
  Bytes gradient_bytes = 0;  ///< the gradients among them
  /// All experts of a block, of one microbatch: kept from forward to backward, and scratch.
  Bytes kept_bytes = 0, workspace_bytes = 0;
  /// One microbatch's tokens on their way to the experts of a block, each to top_k of them.
  Bytes exchange_bytes = 0;
};

}  // namespace troupe
