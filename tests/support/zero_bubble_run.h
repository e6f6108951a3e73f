/// Runs of the table zero_bubble (Qi et al. 2024, arXiv:2401.10241, tables 3 to 5), simulated with
/// priced actions.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "planner/estimate.h"
#include "planner/lowering.h"
#include "planner/schedule_measures.h"
#include "planner/schedules.h"
#include "planner/simulate.h"
#include "planner/split_costs.h"
#include "planner/zero_bubble_search.h"
#include "tests/support/published_table.h"

namespace troupe::published {

/// The paper does not print the vocabulary. Of its four models' parameter counts, 12 L h^2 of
/// blocks leave room for one table of 27 to 34 thousand words: a SentencePiece vocabulary of 32
/// thousand.
inline constexpr double zero_bubble_words = 32'000;

/// Share of the datasheet's memory bandwidth that the elementwise kernels of this Megatron reach:
/// what the scores fit on the rows of this table with schedule 1F1B and metric throughput.
inline constexpr double megatron_memory_share = 0.50;

/// What pairs of A100 reach with messages of 10 to 25 MB within a node: the measured curve of
/// Sailor's profiles (sailor_network, intra-node A100-80).
inline constexpr BytesPerSecond a100_pair_bandwidth = 110e9;

/// One setting of the table, simulated.
class ZeroBubbleRun {
 public:
  explicit ZeroBubbleRun(const Row& row, double memory_share = megatron_memory_share)
      : stages_(static_cast<std::uint32_t>(row.count("stages"))),
        microbatches_(static_cast<std::uint32_t>(row.count("microbatches"))),
        layers_(row.number("layers")),
        shorter_ends_(row.text("layer_split").find("one layer fewer") != std::string::npos) {
    shape_.hidden = row.number("hidden");
    shape_.heads = shape_.kv_heads = row.number("heads");
    shape_.ffn = 4 * shape_.hidden;
    shape_.sequence = row.number("seq");
    shape_.vocabulary = row.maybe_number("vocab").value_or(zero_bubble_words);
    cut_.microbatch = row.number("mbs");
    cut_.tensor = row.number("tp");
    rates_ = a100_rates();
    rates_.memory_achievable = memory_share;
    if (std::fmod(middle_layers(), 1) != 0 || middle_layers() < 1)
      throw BadTable(row.place() + ": the layers do not divide into equal middle stages");
  }

  /// Of a stage that is neither first nor last.
  double middle_layers() const { return (layers_ + (shorter_ends_ ? 2 : 0)) / stages_; }

  std::vector<LayerSeconds> seconds(bool with_ends) const {
    const LayerSeconds block = split_block_seconds(shape_, cut_, rates_);
    std::vector<LayerSeconds> out(stages_);
    for (std::uint32_t s = 0; s < stages_; ++s) {
      const bool first = s == 0, last = s + 1 == stages_;
      const double fewer = with_ends && shorter_ends_ ? (first ? 1 : 0) + (last ? 1 : 0) : 0;
      add_seconds(out[s], block, middle_layers() - fewer);
      if (with_ends && first) add_seconds(out[s], split_embedding_seconds(shape_, cut_, rates_));
      if (with_ends && last) add_seconds(out[s], split_output_seconds(shape_, cut_, rates_));
    }
    return out;
  }

  /// The mean over the boundaries: of every eight one is between nodes.
  Seconds transfer() const {
    Interconnect net;
    net.intra = a100_pair_bandwidth;
    const double bytes = 2 * shape_.sequence * cut_.microbatch * shape_.hidden;
    const double between = std::floor((stages_ - 1) / net.devices_per_node);
    const double within = stages_ - 1 - between;
    return (within * stage_transfer_seconds(bytes, 1, true, net) +
            between * stage_transfer_seconds(bytes, 1, false, net)) /
           std::max(1.0, within + between);
  }

  Schedule schedule(const std::string& name, const std::vector<LayerSeconds>& seconds) const {
    StageMap map = looped_stages(stages_, microbatches_);
    map.transfer_slots = microbatches_;
    if (name == "1F1B-I") {
      // One layer a chunk.
      map = looped_stages(stages_, microbatches_, static_cast<std::uint32_t>(middle_layers()));
      map.transfer_slots = microbatches_;
      return make_schedule(ScheduleKind::interleaved, map).value();
    }
    if (name == "1F1B") return make_schedule(ScheduleKind::one_f_one_b, map).value();
    if (name == "ZB-H1") return make_schedule(ScheduleKind::zero_bubble_h1, map).value();
    if (name == "ZB-H2") return add_transfers(zero_bubble_h2(map));
    ZeroBubbleProblem problem;
    for (const LayerSeconds& one : seconds) {
      problem.forward.push_back(one.forward);
      problem.backward_input.push_back(one.backward_input);
      problem.backward_weight.push_back(one.backward_weight);
    }
    problem.transfer = transfer();
    problem.microbatches = microbatches_;
    problem.in_flight_limits.assign(stages_, (name == "ZB-2p" ? 2 : 1) * stages_);
    problem.deferred_share = deferred_bytes() / kept_bytes(shape_, cut_, Recompute::none);
    return add_transfers(zero_bubble_search(problem));
  }

  Timeline play(const Schedule& schedule, const std::vector<LayerSeconds>& seconds) const {
    StepCosts costs;
    const std::uint32_t count = schedule.stages.stage_count();
    const double chunks = count / stages_;
    for (std::uint32_t s = 0; s < count; ++s) {
      LayerSeconds one;
      add_seconds(one, seconds[s % stages_], 1 / chunks);
      costs.stages.push_back(one);
    }
    costs.overhead.assign(count, 0);
    costs.transfer_forward.assign(count, transfer());
    costs.transfer_backward = costs.transfer_forward;
    costs.transfer_tied.assign(count, 0);
    return simulate(schedule, costs);
  }

  /// (cost - m (F + I + W)) / cost on equal stages, as the paper computes it.
  double bubble_rate(const std::string& name) const {
    const std::vector<LayerSeconds> equal = seconds(false);
    const Seconds cost = longest_device_span(play(schedule(name, equal), equal));
    const LayerSeconds& one = equal.front();
    return 1 - microbatches_ * (one.forward + one.backward_input + one.backward_weight) / cost;
  }

  /// Samples a second and device, the optimizer's step included.
  double throughput(const std::string& name) const {
    const std::vector<LayerSeconds> own = seconds(true);
    const Seconds span = longest_device_span(play(schedule(name, own), own));
    const Seconds update = update_seconds(stage_parameters(1), Framework{}, rates_);
    return microbatches_ * cut_.microbatch / stages_ / (span + update);
  }

  /// Bytes of the fullest device: weights and gradients (f32, accumulated) and Adam, 18 bytes a
  /// parameter; what blocks keep from F to B or I, and from I to W.
  double peak_bytes(const std::string& name) const {
    const Schedule order = schedule(name, seconds(true));
    const double chunks = order.stages.stage_count() / stages_;
    double most = 0;
    for (std::uint32_t s = 0; s < stages_; ++s) {
      const double activations = most_kept(order.devices[s]) * stage_layers(s) / chunks;
      most = std::max(most, 18 * stage_parameters(s) + activations);
    }
    return most;
  }

 private:
  /// What W needs of one block: inputs and output gradients of the products with weights, 16 bits
  /// (the paper's M_W: 32 s b h).
  double deferred_bytes() const {
    double bytes = 0;
    for (const LayerOp& op : block_ops(shape_, cut_).forward) bytes += 2 * op.m * (op.k + op.n);
    return bytes;
  }

  /// Of one block on a device that runs these actions.
  double most_kept(const std::vector<Action>& lane) const {
    const double whole = kept_bytes(shape_, cut_, Recompute::none);
    double now = 0, most = 0;
    for (const Action& action : lane) {
      if (action.op == Op::forward) now += whole;
      if (action.op == Op::backward) now -= whole;
      if (action.op == Op::backward_input) now -= whole - deferred_bytes();
      if (action.op == Op::backward_weight) now -= deferred_bytes();
      most = std::max(most, now);
    }
    return most;
  }

  bool is_end(std::uint32_t s) const { return s == 0 || s + 1 == stages_; }
  double stage_layers(std::uint32_t s) const {
    return middle_layers() - (is_end(s) && shorter_ends_ ? 1 : 0);
  }
  double stage_parameters(std::uint32_t s) const {
    return block_weights(shape_, 1) * stage_layers(s) +
           (is_end(s) ? shape_.vocabulary * shape_.hidden : 0);
  }

  std::uint32_t stages_, microbatches_;
  double layers_;
  bool shorter_ends_;
  BlockShape shape_;
  BlockCut cut_;
  AcceleratorRates rates_;
};

}  // namespace troupe::published
