#include "planner/estimate.h"

#include <algorithm>
#include <cmath>

#include "planner/result.h"

namespace troupe {
namespace {

BlockCut cut_of(const Layout& layout) {
  return {real(layout.microbatch), real(layout.tensor), layout.sequence_parallel,
          layout.flash_attention};
}

bool one_node(const Layout& layout, const Interconnect& net) {
  return real(layout.devices()) <= net.devices_per_node;
}

Group tensor_group(const Layout& layout, const Interconnect& net) {
  const double members = real(layout.tensor);
  return {members, members <= net.devices_per_node, 1};
}

/// Neighbouring replicas share nodes; every rank of a tensor group has a data group of its own.
Group data_group(const Layout& layout, const Interconnect& net) {
  return {real(layout.data), real(layout.tensor * layout.data) <= net.devices_per_node,
          std::min(real(layout.tensor), net.devices_per_node)};
}

/// Elements of one tensor between the two products of the feed-forward part.
double inner_elements(const BlockShape& shape, const Layout& layout) {
  return shape.sequence * real(layout.microbatch) * shape.ffn / real(layout.tensor);
}

/// The least time of a block, however little it computes: its ops have to be issued, and where its
/// tensor group spans nodes, its four halves of all-reduces go round a ring step by step.
struct BlockFloor {
  Seconds forward = 0, backward = 0;
};
BlockFloor block_floor(const Layout& layout, const Framework& framework, const Interconnect& net) {
  const Group group = tensor_group(layout, net);
  const Seconds rings = group.within_node ? 0 : 4 * ring_latency_seconds(group, net);
  BlockFloor out{std::max(framework.forward_ops * framework.host_per_op, rings),
                 std::max(framework.backward_ops * framework.host_per_op, rings)};
  if (one_node(layout, net)) return out;
  const Seconds ranks = real(layout.tensor) * framework.host_per_rank;
  const double share = framework.forward_ops / (framework.forward_ops + framework.backward_ops);
  out.forward += share * ranks;
  out.backward += (1 - share) * ranks;
  return out;
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

bool last_stage(const Layout& layout, std::uint64_t stage) {
  return stage + 1 == layout.pipeline;
}

/// Parameters on one rank of a stage: blocks, the table on the first one, the output layer on the
/// last one, which is the same table where both are one stage.
double stage_parameters(const TransformerStack& model, const Layout& layout, std::uint64_t stage) {
  const double tensor = real(layout.tensor);
  const double even = real(model.layers) / real(layout.pipeline);
  const double blocks = layout.stage_blocks.empty() ? even : real(layout.stage_blocks.at(stage));
  const bool own_output = last_stage(layout, stage) && !(model.tied && layout.pipeline == 1);
  const double tables = (stage == 0 ? 1 : 0) + (own_output ? 1 : 0);
  return block_weights(model.block, tensor) * blocks +
         tables * model.block.vocabulary * model.block.hidden / tensor;
}

/// Of the stage with the most.
double rank_parameters(const TransformerStack& model, const Layout& layout) {
  double most = 0;
  for (std::uint64_t stage = 0; stage < layout.pipeline; ++stage)
    most = std::max(most, stage_parameters(model, layout, stage));
  return most;
}

/// Blocks of one microbatch that a stage holds under 1F1B, times the microbatches in flight.
double blocks_in_flight(const TransformerStack& model, const Layout& layout, std::uint64_t stage) {
  const double pipeline = real(layout.pipeline);
  const double microbatches = real(layout.microbatches());
  if (!layout.stage_blocks.empty())
    return real(layout.stage_blocks.at(stage)) * std::min(pipeline - real(stage), microbatches);
  const double own = real(model.layers) / pipeline;
  const double deepest = first_stage_blocks(real(model.layers), pipeline, real(layout.chunks));
  return std::min(deepest - real(stage) * own, own * microbatches);
}

/// Seconds of all rings that gather whole tensors for ZeRO-3 in one step.
Seconds sharded_traffic(const TransformerStack& model,
                        const Layout& layout,
                        const Framework& framework,
                        const TrainingCluster& cluster) {
  const Group group = data_group(layout, cluster.net);
  // Gathered for forward, for what is recomputed and for backward, scattered once, tensor by
  // tensor, for every microbatch.
  const double gathers = layout.recompute == Recompute::full ? 3 : 2;
  const double bytes = rank_parameters(model, layout) * framework.weight_bytes;
  const Seconds starts = (gathers + 1) * framework.tensors_per_block * real(model.layers) *
                         ring_latency_seconds(group, cluster.net);
  const Seconds moved = gathers * all_gather_seconds(bytes, group, cluster.net) +
                        reduce_scatter_seconds(bytes, group, cluster.net);
  return real(layout.microbatches()) * (moved + starts);
}

/// Seconds of reducing the gradients of replicas once, and of gathering updated parameters.
Seconds replica_traffic(const TransformerStack& model,
                        const Layout& layout,
                        const Framework& framework,
                        const TrainingCluster& cluster) {
  const Group group = data_group(layout, cluster.net);
  const double parameters = rank_parameters(model, layout);
  const double gradients = parameters * framework.reduced_bytes;
  const Seconds moved =
      layout.zero == ZeroStage::none
          ? all_reduce_seconds(gradients, group, cluster.net)
          : reduce_scatter_seconds(gradients, group, cluster.net) +
                all_gather_seconds(parameters * framework.weight_bytes, group, cluster.net);
  const double blocks = real(blocks_of_stage(model, layout, 0));
  return moved + framework.reductions_per_block * blocks * ring_latency_seconds(group, cluster.net);
}

/// What is exposed of both. `busy`: seconds of arithmetic of the step, `last`: of the backward of
/// its last microbatch.
Seconds reduction_seconds(const TransformerStack& model,
                          const Layout& layout,
                          const Framework& framework,
                          const TrainingCluster& cluster,
                          Seconds busy,
                          Seconds last) {
  Seconds out = 0;
  if (layout.zero == ZeroStage::parameters) {
    const Seconds traffic = sharded_traffic(model, layout, framework, cluster);
    out = framework.overlaps_gathers ? std::max(0.0, traffic - busy) : traffic;
  } else {
    out = replica_traffic(model, layout, framework, cluster);
    if (framework.reduction_hidden && layout.zero == ZeroStage::none)
      out = std::max(0.0, out - last);
  }
  if (layout.pipeline > 1 && model.tied) {
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
  const double bytes = boundary_bytes(model.block, layout);
  const double tensor = real(layout.tensor);
  const bool near = one_node(layout, cluster.net);
  // Parts along the sequence are sent and received as they are.
  const Seconds one = layout.sequence_parallel
                          ? stage_transfer_seconds(bytes / tensor, 1, near, cluster.net)
                          : stage_transfer_seconds(bytes, tensor, near, cluster.net);
  // Each microbatch is sent on and its gradient back, once a chunk, and the ends wait for the way
  // through all stages.
  return 2 * one * (real(layout.microbatches() * layout.chunks) + real(layout.pipeline - 1));
}

/// Seconds of one microbatch on the output layer and on the table of words.
struct EndSeconds {
  Seconds input = 0, output = 0;
};
EndSeconds end_seconds(const TransformerStack& model,
                       const Layout& layout,
                       const Framework& framework,
                       const TrainingCluster& cluster) {
  const BlockCut cut = cut_of(layout);
  const double table = model.block.vocabulary * model.block.hidden / real(layout.tensor);
  const Seconds added = moved_seconds(table * framework.accumulate_bytes, cluster.device);
  const bool shared = model.tied && layout.pipeline == 1;
  EndSeconds out;
  out.input = ops_seconds(embedding_ops(model.block, cut), cluster.device) + (shared ? 0 : added);
  out.output = ops_seconds(output_ops(model.block, cut), cluster.device) +
               tensor_traffic(model.block, layout, cluster) + added;
  out.input /= framework.efficiency;
  out.output /= framework.efficiency;
  return out;
}

}  // namespace

Seconds update_seconds(double parameters,
                       const Framework& framework,
                       const AcceleratorRates& device) {
  return framework.update_start + moved_seconds(parameters * framework.update_bytes, device);
}

BlockSeconds block_seconds(const BlockShape& shape,
                           const Layout& layout,
                           const Framework& framework,
                           const TrainingCluster& cluster) {
  const BlockOps ops = block_ops(shape, cut_of(layout));
  const AcceleratorRates& device = cluster.device;
  BlockSeconds out;
  out.attention = ops_seconds(ops.attention_forward, device);
  const Seconds traffic = tensor_traffic(shape, layout, cluster);
  const Seconds added =
      moved_seconds(framework.accumulate_bytes * block_weights(shape, real(layout.tensor)), device);
  const double inner = framework.separate_gate ? inner_elements(shape, layout) : 0;
  const BlockFloor least = block_floor(layout, framework, cluster.net);
  const Seconds gate = moved_seconds(2 * 2 * inner, device);  // written, and read again
  const auto issued = [&framework](Seconds work, Seconds host) {
    return framework.waits_for_ops ? work + host : std::max(work, host);
  };
  out.forward =
      issued(ops_seconds(ops.forward, device) + out.attention + traffic + gate, least.forward);
  out.backward =
      issued(ops_seconds(ops.backward, device) + ops_seconds(ops.attention_backward, device) +
                 traffic + added + 1.5 * gate,  // two gradients, one of them added to
             least.backward);
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
  const EndSeconds ends = end_seconds(model, layout, framework, cluster);
  Seconds slowest = 0, all = 0;
  double blocks = 0;  // of the slowest stage
  for (std::uint64_t stage = 0; stage < layout.pipeline; ++stage) {
    const double own = real(blocks_of_stage(model, layout, stage));
    const Seconds time = own * (block.forward + block.backward) + (stage == 0 ? ends.input : 0) +
                         (last_stage(layout, stage) ? ends.output : 0);
    all += time;
    if (time <= slowest) continue;
    slowest = time;
    blocks = own;
  }
  const double microbatches = real(layout.microbatches());
  StepSeconds out;
  out.tensor = microbatches * blocks * block.tensor;
  out.compute = microbatches * slowest - out.tensor;
  out.bubble = (all - slowest) / real(layout.chunks);
  out.transfer = transfer_seconds(model, layout, cluster);
  out.reduction = reduction_seconds(model, layout, framework, cluster, microbatches * slowest,
                                    blocks * block.backward);
  const double sharded = layout.zero == ZeroStage::none ? 1 : real(layout.data);
  out.optimizer =
      update_seconds(rank_parameters(model, layout) / sharded, framework, cluster.device);
  return out;
}

StepBytes stage_bytes(const TransformerStack& model,
                      const Layout& layout,
                      const Framework& framework,
                      std::uint64_t stage) {
  EXPECTS(stage < layout.pipeline);
  const double parameters = stage_parameters(model, layout, stage);
  const auto shards = [&layout](ZeroStage from) {
    return layout.zero >= from ? real(layout.data) : 1.0;
  };
  StepBytes out;
  out.weights = parameters * framework.weight_bytes / shards(ZeroStage::parameters);
  out.gradients = parameters * framework.gradient_bytes / shards(ZeroStage::gradients);
  out.optimizer = parameters * framework.optimizer_bytes / shards(ZeroStage::optimizer);

  const BlockCut cut = cut_of(layout);
  const double tokens = model.block.sequence * real(layout.microbatch);
  const double tensor = real(layout.tensor);
  const double cut_tokens = tokens / (layout.sequence_parallel ? tensor : 1);
  double kept = kept_bytes(model.block, cut, layout.recompute);
  if (framework.keeps_gathered && layout.recompute != Recompute::full)
    kept += 2 * 2 * (tokens - cut_tokens) * model.block.hidden;
  if (framework.separate_gate && layout.recompute != Recompute::full)
    kept += 2 * inner_elements(model.block, layout);
  const double pipeline = real(layout.pipeline);
  const double in_flight = std::min(pipeline - real(stage), real(layout.microbatches()));
  out.activations = kept * blocks_in_flight(model, layout, stage);
  if (framework.keeps_outputs && !last_stage(layout, stage))
    out.activations += 2 * cut_tokens * model.block.hidden * in_flight;
  if (layout.recompute == Recompute::full)
    out.working = kept_bytes(model.block, cut, Recompute::none) - kept;

  if (stage == 0 && model.block.dropout) out.ends = cut_tokens * model.block.hidden * in_flight;
  if (last_stage(layout, stage))
    out.ends += 4 * cut_tokens * model.block.hidden +
                framework.logit_bytes * tokens * model.block.vocabulary / tensor;
  out.context = framework.context_bytes + framework.unusable_share * out.total();
  return out;
}

StepBytes step_bytes(const TransformerStack& model,
                     const Layout& layout,
                     const Framework& framework) {
  StepBytes most = stage_bytes(model, layout, framework, 0);
  for (std::uint64_t stage = 1; stage < layout.pipeline; ++stage) {
    const StepBytes bytes = stage_bytes(model, layout, framework, stage);
    if (bytes.total() > most.total()) most = bytes;
  }
  return most;
}

}  // namespace troupe
