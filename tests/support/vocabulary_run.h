/// Runs of the table vocabulary_parallelism (Yeung et al. 2025, arXiv:2411.05288): the output layer
/// on the last stage, after redistribution of the blocks by the planner's own search, or spread
/// over all stages.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "planner/partition.h"
#include "planner/pipeline_time.h"
#include "planner/vocabulary_parallel.h"
#include "tests/support/zero_bubble_run.h"

namespace troupe::published {

/// Weights in 16 bits, gradients accumulated and Adam in f32.
inline constexpr double vocabulary_state_bytes = 18;

/// One setting of the table, priced and simulated. The kernels' share of memory bandwidth is the
/// one fitted for zero_bubble, whose framework this one extends.
class VocabularyTableRun {
 public:
  explicit VocabularyTableRun(const Row& row)
      : stages_(static_cast<std::uint32_t>(row.count("stages"))),
        microbatches_(static_cast<std::uint32_t>(row.count("microbatches"))),
        layers_(static_cast<std::uint32_t>(row.count("layers"))),
        rates_(a100_rates()),
        net_() {
    shape_.hidden = row.number("hidden");
    shape_.heads = shape_.kv_heads = row.number("heads");
    shape_.ffn = 4 * shape_.hidden;
    shape_.sequence = row.number("seq");
    shape_.vocabulary = row.number("vocab_k") * 1024;
    cut_.microbatch = row.number("mbs");
    cut_.flash_attention = true;  // what fits: without it no row's activations do
    rates_.memory_achievable = megatron_memory_share;
    net_.intra = a100_pair_bandwidth;
    if (layers_ % stages_ != 0)
      throw BadTable(row.place() + ": the layers do not divide into equal stages");
    block_ = split_block_seconds(shape_, cut_, rates_);
    input_ = split_embedding_seconds(shape_, cut_, rates_);
    output_ = split_output_seconds(shape_, cut_, rates_);
  }

  /// Stages of a schedule by the table's name, as ranges of embedding, blocks and output layer.
  std::vector<LayerRange> stages(const std::string& schedule) const {
    if (schedule == "Redis") return redistributed();
    std::vector<LayerRange> out;
    const std::uint32_t each = layers_ / stages_;
    for (std::uint32_t s = 0; s < stages_; ++s)
      out.push_back({s == 0 ? 0 : 1 + s * each, 1 + (s + 1) * each + (s + 1 == stages_ ? 1 : 0)});
    return out;
  }

  Seconds step(const std::string& schedule) const { return step_of(stages(schedule), schedule); }

  Seconds step_of(const std::vector<LayerRange>& ranges, const std::string& schedule) const {
    Seconds span = 0;
    if (schedule == "Vocab-1" || schedule == "Vocab-2") {
      span = play_vocabulary_parallel(vocabulary(schedule, ranges)).seconds;
    } else {
      StepCosts costs = fused(ranges);
      if (schedule == "Interlaced") interlace(costs);
      span = one_f_one_b_seconds(costs, microbatches_, microbatches_, false);
    }
    return span + update_seconds(parameters(ranges[0], false), Framework{}, rates_);
  }

  double mfu(const std::string& schedule) const {
    const double flops = gpt_step_flops({static_cast<double>(layers_), shape_.hidden, shape_.heads,
                                         shape_.sequence, shape_.vocabulary},
                                        microbatches_ * cut_.microbatch, Recompute::none);
    return flops / step(schedule) / stages_ / rates_.peak;
  }

  double peak_bytes(const std::string& schedule) const {
    const bool spread = schedule == "Vocab-1" || schedule == "Vocab-2" || schedule == "Interlaced";
    const std::vector<LayerRange> ranges = stages(schedule);
    const double kept = kept_bytes(shape_, cut_, Recompute::none);
    const double tokens = shape_.sequence * cut_.microbatch;
    double most = 0;
    const auto count = static_cast<std::uint32_t>(ranges.size());
    for (std::uint32_t s = 0; s < count; ++s) {
      double in_flight = std::min(microbatches_, count - s);
      if (schedule == "Vocab-1") in_flight += 2;
      if (schedule == "Vocab-2") in_flight += 1;
      if (schedule == "Interlaced") in_flight *= 1.5;
      const double logits = spread                         ? shape_.vocabulary / stages_ * tokens
                            : ranges[s].holds(layers_ + 1) ? shape_.vocabulary * tokens
                                                           : 0;
      most = std::max(most, vocabulary_state_bytes * parameters(ranges[s], spread) +
                                in_flight * kept * blocks(ranges[s]) + 6 * logits);
    }
    return most;
  }

  /// The slowest stage of these ranges.
  Seconds slowest(const std::vector<LayerRange>& ranges) const {
    Seconds most = 0;
    for (const LayerSeconds& one : fused(ranges).stages) most = std::max(most, total(one));
    return most;
  }

  /// The least that any split of the layers can have: by bisection over whole blocks a stage, what
  /// the ends leave room for.
  Seconds least_slowest() const {
    std::vector<Seconds> tries;
    for (std::uint32_t n = 0; n <= layers_; ++n)
      for (const Seconds end : {0.0, total(input_), total(output_)})
        tries.push_back(n * total(block_) + end);
    std::sort(tries.begin(), tries.end());
    for (const Seconds limit : tries) {
      const auto room = [&](Seconds end) {
        return end > limit ? -1e9 : std::floor((limit - end) / total(block_) + 1e-9);
      };
      if (room(total(input_)) + room(total(output_)) + (stages_ - 2) * room(0) >= layers_)
        return limit;
    }
    return tries.back();
  }

  /// Whether the planner's own search finds stages that end the step no later than the paper's
  /// redistribution, up to 0.5 %: it plans with two transfer buffers an edge, which are not in the
  /// paper's step.
  bool search_is_as_good() const {
    const std::vector<LayerRange> found = searched();
    return !found.empty() && step_of(found, "Redis") <= step("Redis") * 1.005;
  }

 private:
  static Seconds total(const LayerSeconds& one) {
    return one.forward + one.backward_input + one.backward_weight;
  }

  double blocks(const LayerRange& range) const {
    return range.size() - (range.holds(0) ? 1 : 0) - (range.holds(layers_ + 1) ? 1 : 0);
  }

  double parameters(const LayerRange& range, bool spread) const {
    const double table = shape_.vocabulary * shape_.hidden;
    const double own = (range.holds(0) ? table : 0) + (range.holds(layers_ + 1) ? table : 0);
    return block_weights(shape_, 1) * blocks(range) + (spread ? 2 * table / stages_ : own);
  }

  double boundary_bytes() const { return 2 * shape_.sequence * cut_.microbatch * shape_.hidden; }

  Seconds hop(std::uint32_t from, std::uint32_t to) const {
    const auto node = [&](std::uint32_t s) {
      return s / static_cast<std::uint32_t>(net_.devices_per_node);
    };
    return stage_transfer_seconds(boundary_bytes(), 1, node(from) == node(to), net_);
  }

  StepCosts fused(const std::vector<LayerRange>& ranges) const {
    StepCosts costs;
    const auto count = static_cast<std::uint32_t>(ranges.size());
    for (std::uint32_t s = 0; s < count; ++s) {
      LayerSeconds one;
      add_seconds(one, block_, blocks(ranges[s]));
      if (ranges[s].holds(0)) add_seconds(one, input_);
      if (ranges[s].holds(layers_ + 1)) add_seconds(one, output_);
      costs.stages.push_back(one);
      costs.transfer_forward.push_back(s + 1 < count ? hop(s, s + 1) : 0);
      costs.transfer_backward.push_back(s > 0 ? hop(s, s - 1) : 0);
    }
    costs.overhead.assign(count, 0);
    costs.transfer_tied.assign(count, 0);
    return costs;
  }

  Group everybody() const {
    const bool near = stages_ <= net_.devices_per_node;
    return {static_cast<double>(stages_), near, 1};
  }

  VocabularyProblem vocabulary(const std::string& schedule,
                               const std::vector<LayerRange>& ranges) const {
    VocabularyProblem out;
    out.barriers = schedule == "Vocab-2" ? VocabularyBarriers::one : VocabularyBarriers::two;
    for (const LayerRange& range : ranges) {
      const double count = blocks(range);
      out.forward.push_back(count * block_.forward);
      out.backward.push_back(count * (block_.backward_input + block_.backward_weight));
    }
    const VocabularySeconds own = vocabulary_seconds(shape_, cut_, rates_, stages_, out.barriers);
    out.score = own.score;
    out.tail = own.tail;
    for (std::uint32_t s = 0; s + 1 < stages_; ++s) out.transfer.push_back(hop(s, s + 1));
    out.broadcast = all_gather_seconds(boundary_bytes(), everybody(), net_);
    out.reduce = reduce_scatter_seconds(boundary_bytes(), everybody(), net_);
    const double tokens = shape_.sequence * cut_.microbatch;
    out.barrier = 2 * all_reduce_seconds(4 * tokens, everybody(), net_);
    out.microbatches = microbatches_;
    return out;
  }

  /// Passes and their communication in lock-step on all stages, as tensor parallelism runs them.
  void interlace(StepCosts& costs) const {
    const VocabularyProblem parts = vocabulary("Vocab-1", stages("Baseline"));
    for (std::uint32_t s = 0; s < stages_; ++s) {
      LayerSeconds one;
      add_seconds(one, block_, layers_ / stages_);
      one.forward += parts.score + parts.broadcast;
      one.backward_input += parts.tail + parts.barrier + parts.reduce;
      costs.stages[s] = one;
    }
  }

  /// The paper's redistribution: the longest stage is as short as it can be, and what the ends
  /// cannot take lies evenly on the others, the earlier ones first.
  std::vector<LayerRange> redistributed() const {
    const Seconds limit = least_slowest();
    const std::uint32_t each = layers_ / stages_;
    const auto room = [&](const LayerSeconds& end) {
      const Seconds free = limit - total(end);
      return free < 0 ? 0U
                      : std::min(each, static_cast<std::uint32_t>(free / total(block_) + 1e-9));
    };
    const std::uint32_t first = room(input_), last = room(output_), inner = stages_ - 2;
    const std::uint32_t rest = layers_ - first - last;
    std::vector<LayerRange> out{{0, 1 + first}};
    for (std::uint32_t s = 0; s < inner; ++s)
      out.push_back({out.back().last, out.back().last + rest / inner + (s < rest % inner ? 1 : 0)});
    out.push_back({out.back().last, layers_ + 2});
    return out;
  }

  /// What the planner's own search makes of as many equal devices.
  std::vector<LayerRange> searched() const {
    ModelSpec model;
    model.blocks = layers_;
    model.width = static_cast<std::uint32_t>(shape_.hidden);
    model.heads = model.kv_heads = static_cast<std::uint32_t>(shape_.heads);
    model.ffn_width = 4 * model.width;
    model.vocabulary = static_cast<std::uint32_t>(shape_.vocabulary);
    model.context = static_cast<std::uint32_t>(shape_.sequence);
    model.tied = false;
    ClusterSpec cluster;
    const auto per_node = static_cast<std::uint32_t>(net_.devices_per_node);
    for (std::uint32_t i = 0; i < stages_; ++i) {
      DeviceSpec device;
      device.name = fmt::format("gpu{}", i);
      device.node = NodeId{i / per_node};
      device.memory = 80_GiB;
      device.measured = {
          {LayerKind::embedding, input_}, {LayerKind::block, block_}, {LayerKind::head, output_}};
      cluster.devices.push_back(device);
    }
    for (std::uint32_t n = 0; n * per_node < stages_; ++n)
      cluster.nodes.push_back({fmt::format("n{}", n), true});
    cluster.same_process = {net_.transfer_start, net_.intra};
    cluster.between_processes = {net_.transfer_start,
                                 net_.node * net_.node_achievable / net_.devices_per_node};
    ModelProfile profile;
    const auto bytes = [](double value) { return static_cast<Bytes>(value); };
    const double table = shape_.vocabulary * shape_.hidden;
    profile.embedding.kind = LayerKind::embedding;
    profile.head.kind = LayerKind::head;
    profile.block.weight_bytes = bytes(vocabulary_state_bytes * block_weights(shape_, 1));
    profile.embedding.weight_bytes = profile.head.weight_bytes =
        bytes(vocabulary_state_bytes * table);
    profile.block.saved_bytes = bytes(kept_bytes(shape_, cut_, Recompute::none));
    profile.block.output_bytes = profile.embedding.output_bytes = bytes(boundary_bytes());
    PlanOptions options;
    options.shape.microbatch_count = microbatches_;
    options.transfer_slots = 2;
    const PartitionSearch search = search_partition(model, cluster, profile, options);
    std::vector<LayerRange> out;
    if (search.found)
      for (const StagePlan& stage : search.found->stages) out.push_back(stage.layers);
    return out;
  }

  std::uint32_t stages_, microbatches_, layers_;
  BlockShape shape_;
  BlockCut cut_;
  AcceleratorRates rates_;
  Interconnect net_;
  LayerSeconds block_, input_, output_;
};

}  // namespace troupe::published
