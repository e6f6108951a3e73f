/// Rows of published training runs as values of the planner, and the baseline they share.
#pragma once

#include <vector>

#include "planner/estimate.h"
#include "tests/bench/published/score.h"

namespace troupe::published {

/// Host time of one eager op of PyTorch in a training loop in Python: the one value fitted for
/// vtrain_single_node_a100. Other tables take it from there.
inline constexpr Seconds eager_host_per_op = 37e-6;
/// Of what tensors hold: what PyTorch's caching allocator takes beside. A round figure, the same
/// for all tables; no published one was found.
inline constexpr double allocator_share = 0.1;

/// A GPT of Megatron's kind from the columns hidden, layers, heads, seq, vocab.
TransformerStack gpt_of(const Row& row);
/// From tp, pp, dp, gbs, mbs and recompute. Throws BadTable where the layout cannot run the model.
Layout layout_of(const Row& row, const TransformerStack& model);
/// Flops of one step with what is recomputed, of each device.
double device_flops(const TransformerStack& model, const Layout& layout);

/// A100-SXM4-80GB in nodes of 8 with `network` bytes a second a node.
TrainingCluster a100_cluster(BytesPerSecond network = 100e9);

/// Predictions beside those of one constant efficiency: the median one of the rows themselves.
class Runs {
 public:
  void add(double predicted, double measured, double flops);
  Score score(const std::string& table, const std::string& quantity, std::size_t rows) const;

 private:
  Errors errors_;
  std::vector<double> measured_, flops_;
};

}  // namespace troupe::published
