#include "planner/estimate.h"

#include <algorithm>
#include <cmath>

#include "planner/result.h"

namespace troupe {
namespace {

double real(std::uint64_t count) {
  return static_cast<double>(count);
}

BlockCut cut_of(const Layout& layout) {
  return {real(layout.microbatch), real(layout.tensor), layout.sequence_parallel,
          layout.flash_attention};
}

bool one_node(const Layout& layout, const Interconnect& net) {
  return real(layout.devices()) <= net.devices_per_node;
}

Group tensor_group(const Layout& layout, const Interconnect& net) {
  const double members = real(layout.tensor);
  return {members, members <= net.devices_per_node,
          members <= net.devices_per_node ? 1 : net.devices_per_node};
}

/// Neighbouring replicas share nodes; every rank of a tensor group has a data group of its own.
Group data_group(const Layout& layout, const Interconnect& net) {
  return {real(layout.data), real(layout.tensor * layout.data) <= net.devices_per_node,
          std::min(real(layout.tensor), net.devices_per_node), true};
}

double boundary_bytes(const BlockShape& shape, const Layout& layout) {
  return 2 * shape.sequence * real(layout.microbatch) * shape.hidden;
}

/// Both all-reduces of one direction through a block, of one microbatch.
Seconds tensor_traffic(const BlockShape& shape,
                       const Layout& layout,
                       const TrainingCluster& cluster) {
  return 2 * all_reduce_seconds(boundary_bytes(shape, layout), tensor_group(layout, cluster.net),
                                cluster.net);
}

/// Parameters on one rank of the first stage.
double rank_parameters(const TransformerStack& model, const Layout& layout) {
  const double tensor = real(layout.tensor);
  return block_weights(model.block, tensor) * real(model.layers) / real(layout.pipeline) +
         model.block.vocabulary * model.block.hidden / tensor;
}

/// What is exposed of reducing gradients once a step, and of gathering updated parameters.
Seconds reduction_seconds(const TransformerStack& model,
                          const Layout& layout,
                          const Framework& framework,
                          const TrainingCluster& cluster,
                          Seconds busy) {
  const Group group = data_group(layout, cluster.net);
  const double parameters = rank_parameters(model, layout);
  Seconds out = 0;
  if (layout.zero == ZeroStage::parameters) {
    // Gathered for forward, for what is recomputed and for backward, scattered once, tensor by
    // tensor, for every microbatch.
    const double gathers = layout.recompute == Recompute::full ? 3 : 2;
    const double bytes = parameters * framework.weight_bytes;
    const Seconds starts = (gathers + 1) * framework.tensors_per_block * real(model.layers) *
                           ring_latency_seconds(group, cluster.net);
    const Seconds traffic =
        real(layout.microbatches()) * (gathers * all_gather_seconds(bytes, group, cluster.net) +
                                       reduce_scatter_seconds(bytes, group, cluster.net) + starts);
    out = framework.overlaps_gathers ? std::max(0.0, traffic - busy) : traffic;
  } else {
    out = all_reduce_seconds(parameters * framework.reduced_bytes, group, cluster.net);
  }
  if (layout.pipeline > 1) {
    // The tied table has a half of its gradient on the first and on the last stage.
    const double table =
        model.block.vocabulary * model.block.hidden / real(layout.tensor) * framework.reduced_bytes;
    const bool near = one_node(layout, cluster.net);
    out +=
        all_reduce_seconds(table, {2, near, near ? 1 : cluster.net.devices_per_node}, cluster.net);
  }
  return out;
}

Seconds transfer_seconds(const TransformerStack& model,
                         const Layout& layout,
                         const TrainingCluster& cluster) {
  if (layout.pipeline == 1) return 0;
  const Seconds one =
      stage_transfer_seconds(boundary_bytes(model.block, layout), real(layout.tensor),
                             one_node(layout, cluster.net), cluster.net);
  // Each microbatch is sent on and its gradient back, once a chunk, and the ends wait for the way
  // through all stages.
  return 2 * one * (real(layout.microbatches() * layout.chunks) + real(layout.pipeline - 1));
}

}  // namespace

BlockSeconds block_seconds(const BlockShape& shape,
                           const Layout& layout,
                           const Framework& framework,
                           const TrainingCluster& cluster) {
  const BlockOps ops = block_ops(shape, cut_of(layout));
  const AcceleratorRates& device = cluster.device;
  BlockSeconds out;
  out.attention = ops_seconds(ops.attention_forward, device);
  const Seconds traffic = tensor_traffic(shape, layout, cluster);
  const Seconds host = framework.host_per_op;
  out.forward = std::max(ops_seconds(ops.forward, device) + out.attention + traffic,
                         framework.forward_ops * host);
  out.backward = std::max(
      ops_seconds(ops.backward, device) + ops_seconds(ops.attention_backward, device) + traffic,
      framework.backward_ops * host);
  out.tensor = 2 * traffic;
  if (layout.recompute == Recompute::selective) out.backward += out.attention;
  if (layout.recompute == Recompute::full) {
    out.backward += out.forward;
    out.tensor += traffic;
  }
  for (Seconds* part : {&out.forward, &out.backward, &out.attention, &out.tensor})
    *part /= framework.efficiency;
  return out;
}

StepSeconds step_seconds(const TransformerStack& model,
                         const Layout& layout,
                         const Framework& framework,
                         const TrainingCluster& cluster) {
  EXPECTS(layout_faults(model, layout).empty());
  const BlockSeconds block = block_seconds(model.block, layout, framework, cluster);
  // Layers that do not divide leave one more on some stages.
  const double blocks = std::ceil(real(model.layers) / real(layout.pipeline));
  const Seconds middle = blocks * (block.forward + block.backward);
  const Seconds output = (ops_seconds(output_ops(model.block, cut_of(layout)), cluster.device) +
                          tensor_traffic(model.block, layout, cluster)) /
                         framework.efficiency;
  const Seconds input = ops_seconds(embedding_ops(model.block, cut_of(layout)), cluster.device) /
                        framework.efficiency;
  const Seconds slowest =
      middle + (layout.pipeline == 1 ? output + input : std::max(output, input));
  const double microbatches = real(layout.microbatches());
  StepSeconds out;
  out.tensor = microbatches * blocks * block.tensor;
  out.compute = microbatches * slowest - out.tensor;
  out.bubble = real(layout.pipeline - 1) * middle / real(layout.chunks);
  out.transfer = transfer_seconds(model, layout, cluster);
  out.reduction = reduction_seconds(model, layout, framework, cluster, microbatches * slowest);
  const double sharded = layout.zero == ZeroStage::none ? 1 : real(layout.data);
  out.optimizer =
      framework.update_start + rank_parameters(model, layout) / sharded * framework.update_bytes /
                                   (cluster.device.memory * cluster.device.memory_achievable);
  return out;
}

StepBytes step_bytes(const TransformerStack& model,
                     const Layout& layout,
                     const Framework& framework) {
  const double parameters = rank_parameters(model, layout);
  const auto shards = [&layout](ZeroStage from) {
    return layout.zero >= from ? real(layout.data) : 1.0;
  };
  StepBytes out;
  out.weights = parameters * framework.weight_bytes / shards(ZeroStage::parameters);
  out.gradients = parameters * framework.gradient_bytes / shards(ZeroStage::gradients);
  out.optimizer = parameters * framework.optimizer_bytes / shards(ZeroStage::optimizer);

  const BlockCut cut = cut_of(layout);
  const double kept = kept_bytes(model.block, cut, layout.recompute);
  const double pipeline = real(layout.pipeline);
  const double chunks = real(layout.chunks);
  const double deepest = first_stage_blocks(real(model.layers), pipeline, chunks);
  const double all = real(model.layers) / pipeline * real(layout.microbatches());
  out.activations = kept * std::min(deepest, all);
  if (layout.recompute == Recompute::full)
    out.working = kept_bytes(model.block, cut, Recompute::none) - kept;

  const double tokens = model.block.sequence * real(layout.microbatch);
  const double cut_tokens = tokens / (layout.sequence_parallel ? real(layout.tensor) : 1);
  if (model.block.dropout)
    out.ends = cut_tokens * model.block.hidden * std::min(pipeline, real(layout.microbatches()));
  if (layout.pipeline == 1)
    out.ends += 4 * cut_tokens * model.block.hidden +
                4 * tokens * model.block.vocabulary / real(layout.tensor);
  out.context = framework.context_bytes;
  return out;
}

}  // namespace troupe
