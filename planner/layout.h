/// How a model is cut over equal devices, and what a framework adds to it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/closed_forms.h"
#include "planner/layer_ops.h"
#include "planner/units.h"
#include "planner/zero_memory.h"

namespace troupe {

/// Ranks of one stage's tensor group are neighbours, then data replicas, then pipeline stages.
struct Layout {
  std::uint64_t tensor = 1, pipeline = 1, data = 1;
  bool sequence_parallel = false;
  std::uint64_t chunks = 1;  ///< model chunks a device holds: above 1 interleaved 1F1B
  ZeroStage zero = ZeroStage::none;
  std::uint64_t microbatch = 1, batch = 1;  ///< sequences: of a microbatch, of a step in all
  Recompute recompute = Recompute::none;
  bool flash_attention = false;
  std::uint64_t devices() const { return tensor * pipeline * data; }
  /// Of one replica in one step. Promise: batch is a multiple of data * microbatch.
  std::uint64_t microbatches() const { return batch / (data * microbatch); }
};

/// What a training framework does beyond the arithmetic.
struct Framework {
  /// Host time of one eager op. A device waits where the host issues more slowly than it computes.
  Seconds host_per_op = 0;
  double forward_ops = 24, backward_ops = 44;  ///< eager ops of one block
  /// Bytes a parameter: weights, gradients as kept, gradients as reduced, optimizer.
  double weight_bytes = 2, gradient_bytes = 2, reduced_bytes = 2, optimizer_bytes = 12;
  /// Bytes moved a parameter by unscaling, norm, clipping, Adam and the copy to 16 bits.
  double update_bytes = 60;
  Seconds update_start = 4e-3;  ///< of the optimizer step: its host loops over tensors
  double context_bytes = 0;     ///< of device context and libraries, where memory is compared
  double efficiency = 1;        ///< fitted: divides the time of blocks and ends
  /// Tensors of one block that ZeRO-3 gathers one by one, and whether it does so beside arithmetic.
  double tensors_per_block = 12;
  bool overlaps_gathers = true;
};

/// A stack of equal blocks between a table of words and its tied output layer.
struct TransformerStack {
  BlockShape block;
  std::uint64_t layers = 1;
};

/// Every reason why the layout cannot run, in words; empty: none.
std::vector<std::string> layout_faults(const TransformerStack& model, const Layout& layout);

}  // namespace troupe
