#include "planner/architecture_estimate.h"

#include <algorithm>
#include <cmath>

#include "planner/architecture_terms.h"
#include "planner/result.h"
#include "planner/sharded_data.h"

namespace troupe {
namespace {

/// `members` ranks that are `stride` apart: those between them are groups of the same kind.
Group group_of(double members, double stride, const Interconnect& net) {
  return {members, members * stride <= net.devices_per_node,
          std::min(stride, net.devices_per_node)};
}

/// Both all-reduces of one direction through a block, as far as they are not hidden.
Seconds tensor_traffic(const ArchitectureRun& run,
                       const Layout& layout,
                       const Framework& framework,
                       const Interconnect& net) {
  return framework.tensor_exposed * 2 *
         all_reduce_seconds(boundary_bytes(run, layout), group_of(real(layout.tensor), 1, net),
                            net);
}

/// Tokens to the experts and back, one direction through a block.
Seconds expert_traffic(const BlockShape& shape,
                       const Layout& layout,
                       const Framework& framework,
                       const Interconnect& net) {
  if (shape.experts == 0 || layout.expert == 1) return 0;
  const BlockCut cut = cut_of(layout, framework);
  const double rows = dispatched_bytes(shape, cut) / (2 * shape.hidden * shape.top_k);
  const Group group{real(layout.expert), real(layout.expert) <= net.devices_per_node,
                    net.devices_per_node};
  const double sent = framework.dispatch_bytes * shape.hidden;
  return framework.expert_exposed *
         (expert_exchange_seconds({rows, sent, shape.top_k}, group, net) +
          expert_exchange_seconds({rows, 2 * shape.hidden, shape.top_k}, group, net));
}

/// What a ring of key and value parts does not hide beside the attention of one part.
Seconds ring_exposed(double bytes,
                     Seconds attention,
                     const Layout& layout,
                     const Interconnect& net) {
  const double parts = real(layout.context);
  if (parts == 1) return 0;
  const Seconds hop = ring_step_seconds(bytes, group_of(parts, real(layout.tensor), net), net);
  return (parts - 1) * std::max(0.0, hop - attention / parts);
}

/// Ranks that hold the same experts.
double expert_holders(const Layout& layout) {
  return real(layout.data * layout.context * layout.tensor) / real(layout.expert);
}

/// Gathering `parameters` of one rank's share of a unit, and scattering its gradients: within the
/// group that shares them out, then between the groups.
struct UnitTraffic {
  Seconds gather = 0, scatter = 0;
};

UnitTraffic unit_traffic(const RankParameters& parameters,
                         const Layout& layout,
                         const Framework& framework,
                         const Interconnect& net) {
  const Shards shards = shards_of(layout);
  const double stride = real(layout.tensor);
  // Of so many who hold the same, `members` share it out.
  const auto traffic = [&](double count, double holders, double members, double apart) {
    const Group group = group_of(members, apart, net);
    UnitTraffic out;
    out.gather = all_gather_seconds(count * framework.gathered_bytes, group, net);
    out.scatter = reduce_scatter_seconds(count * framework.reduced_bytes, group, net);
    const double groups = holders / members;
    if (groups > 1)
      out.scatter += all_reduce_seconds(count * framework.reduced_bytes / members,
                                        group_of(groups, members * apart, net), net);
    return out;
  };
  UnitTraffic out =
      traffic(parameters.dense, real(layout.data * layout.context), shards.dense, stride);
  if (parameters.experts > 0 && expert_holders(layout) > 1) {
    const UnitTraffic more =
        traffic(parameters.experts, expert_holders(layout), shards.experts, real(layout.expert));
    out.gather += more.gather;
    out.scatter += more.scatter;
  }
  return out;
}

}  // namespace

double boundary_bytes(const ArchitectureRun& run, const Layout& layout) {
  return 2 * run.sequence / real(layout.context) * real(layout.microbatch) * run.model.width;
}

Seconds boundary_seconds(double bytes, const Layout& layout, const Interconnect& net) {
  const bool near = real(layout.devices()) <= net.devices_per_node;
  return stage_transfer_seconds(bytes, real(layout.tensor), near, net);
}

EndSeconds end_seconds(const ArchitectureRun& run,
                       const Layout& layout,
                       const Framework& framework,
                       const TrainingCluster& cluster) {
  const BlockShape shape = block_shape(run.model, 0, run.sequence);
  const BlockCut cut = cut_of(layout, framework);
  const Seconds output = ops_seconds(output_ops(shape, cut), cluster.device) +
                         tensor_traffic(run, layout, framework, cluster.net);
  return {ops_seconds(embedding_ops(shape, cut), cluster.device) / framework.efficiency,
          output / framework.efficiency};
}

std::vector<BlockSeconds> all_block_seconds(const ArchitectureRun& run,
                                            const Layout& layout,
                                            const Framework& framework,
                                            const TrainingCluster& cluster) {
  std::vector<BlockSeconds> out;
  std::optional<BlockSeconds> known[2];
  for (std::uint32_t i = 0; i < run.model.blocks; ++i) {
    std::optional<BlockSeconds>& kind = known[has_experts(run.model, i) ? 1 : 0];
    if (!kind) kind = block_seconds(run, i, layout, framework, cluster);
    out.push_back(*kind);
  }
  return out;
}

Seconds optimizer_seconds(const RankParameters& parameters,
                          const Layout& layout,
                          const Framework& framework,
                          const AcceleratorRates& device) {
  const double held = parameters.sharded(layout.zero != ZeroStage::none, shards_of(layout));
  return update_seconds(held, framework, device);
}

Seconds reduction_seconds(const Layout& layout,
                          const Framework& framework,
                          const Interconnect& net,
                          const RankParameters& parameters,
                          const BlockSeconds& microbatch) {
  const UnitTraffic unit = unit_traffic(parameters, layout, framework, net);
  const double whole = parameters.dense * framework.reduced_bytes;
  const Group replicas = group_of(real(layout.data * layout.context), real(layout.tensor), net);
  Seconds reduced = unit.scatter, gathered = 0;
  if (layout.zero == ZeroStage::none || framework.reduced_whole) {
    reduced = all_reduce_seconds(whole, replicas, net);
    const double holders = expert_holders(layout);
    if (parameters.experts > 0 && holders > 1)
      reduced += all_reduce_seconds(parameters.experts * framework.reduced_bytes,
                                    group_of(holders, real(layout.expert), net), net);
  }
  if (layout.zero != ZeroStage::none) {
    gathered = unit.gather;
    if (framework.owners_broadcast) {
      const Shards shards = shards_of(layout);
      const auto sent = [&](double count, double owners, double apart) {
        return owner_broadcast_seconds(count * framework.gathered_bytes,
                                       group_of(owners, apart, net), net);
      };
      gathered = sent(parameters.dense, shards.dense, real(layout.tensor));
      if (parameters.experts > 0 && shards.experts > 1)
        gathered += sent(parameters.experts, shards.experts, real(layout.expert));
    }
  }
  if (framework.reduction_hidden) reduced = std::max(0.0, reduced - microbatch.backward);
  // Who keeps a shard of the gradients only reduces them after every microbatch.
  if (layout.zero == ZeroStage::gradients && !framework.reduced_whole)
    reduced *= real(layout.microbatches());
  if (framework.gather_hidden) gathered = std::max(0.0, gathered - microbatch.forward);
  return reduced + gathered;
}

bool gathers_layers(const Layout& layout, const Framework& framework) {
  return layout.pipeline == 1 &&
         (layout.zero == ZeroStage::parameters ||
          (layout.zero == ZeroStage::gradients && framework.gathers_layers));
}

namespace {

/// All layers on one device, each gathered before it computes.
StepSeconds sharded_step(const ArchitectureRun& run,
                         const Layout& layout,
                         const Framework& framework,
                         const TrainingCluster& cluster) {
  const EndSeconds ends = end_seconds(run, layout, framework, cluster);
  const auto traffic = [&](const RankParameters& parameters) {
    return unit_traffic(parameters, layout, framework, cluster.net);
  };
  std::vector<ShardedLayer> layers;
  const UnitTraffic table = traffic({rank_table(run, layout), 0});
  const Seconds looked_up = ends.forward_of_input();
  layers.push_back({looked_up, ends.input - looked_up, table.gather, table.scatter});
  StepSeconds out;
  const double microbatches = real(layout.microbatches());
  for (std::uint32_t i = 0;
       const BlockSeconds& block : all_block_seconds(run, layout, framework, cluster)) {
    const UnitTraffic unit = traffic(rank_block(run, i++, layout));
    layers.push_back({block.forward, block.backward, unit.gather, unit.scatter});
    out.tensor += microbatches * block.tensor;
  }
  // A tied table stays gathered from the first layer to the last.
  const UnitTraffic head = run.model.tied ? UnitTraffic{} : traffic({rank_head(run, layout), 0});
  const Seconds projected = ends.forward_of_output();
  layers.push_back({projected, ends.output - projected, head.gather, head.scatter});
  ShardedSchedule schedule;
  schedule.microbatches = layout.microbatches();
  schedule.prefetch = framework.overlaps_gathers ? 1 : 0;
  schedule.gathered_twice = layout.zero == ZeroStage::parameters;
  const ShardedSeconds step = sharded_step_seconds(layers, schedule);
  out.compute = step.arithmetic - out.tensor;
  out.reduction = step.exposed;
  out.optimizer = optimizer_seconds(rank_stage(run, layout), layout, framework, cluster.device);
  return out;
}

/// Microbatches on the slowest stage, filling and draining, the reduction after them.
StepSeconds pipelined_step(const ArchitectureRun& run,
                           const Layout& layout,
                           const Framework& framework,
                           const TrainingCluster& cluster) {
  const EndSeconds ends = end_seconds(run, layout, framework, cluster);
  const auto blocks = all_block_seconds(run, layout, framework, cluster);
  BlockSeconds stage;
  const double held = std::min<double>(stage_blocks(run, layout), real(blocks.size()));
  const double part =
      framework.balanced_stages ? real(blocks.size()) / real(layout.pipeline) : held;
  const auto first =
      framework.balanced_stages ? blocks.begin() : blocks.end() - static_cast<std::ptrdiff_t>(held);
  for (auto block = first; block != blocks.end(); ++block) {
    const double share = part / real(static_cast<std::uint64_t>(blocks.end() - first));
    stage.forward += share * block->forward;
    stage.backward += share * block->backward;
    stage.tensor += share * block->tensor;
  }
  const double stages = real(layout.pipeline);
  Seconds end = layout.pipeline == 1 ? ends.output + ends.input : std::max(ends.output, ends.input);
  if (framework.balanced_stages) end = (ends.output + ends.input) / stages;
  const Seconds slowest = stage.forward + stage.backward + end;
  const double microbatches = real(layout.microbatches());
  StepSeconds out;
  out.tensor = microbatches * stage.tensor;
  out.compute = microbatches * slowest - out.tensor;
  out.bubble = (stages - 1) * (stage.forward + stage.backward) / real(layout.chunks);
  if (layout.pipeline > 1) {
    const Seconds one = boundary_seconds(boundary_bytes(run, layout), layout, cluster.net);
    const double seen = framework.transfers_hidden ? 0 : microbatches * real(layout.chunks);
    out.transfer = 2 * one * (seen + stages - 1);
  }
  const RankParameters fullest = rank_stage(run, layout);
  out.reduction = reduction_seconds(layout, framework, cluster.net, fullest, stage);
  out.optimizer = optimizer_seconds(fullest, layout, framework, cluster.device);
  return out;
}

}  // namespace

std::vector<std::string> layout_faults(const ArchitectureRun& run, const Layout& layout) {
  std::vector<std::string> out;
  const Status holds = validate(run.model);
  if (!holds.ok()) out.push_back(holds.error().text);
  const auto divides = [&out](std::uint64_t part, std::uint64_t whole, const std::string& what) {
    if (part == 0 || whole % part != 0)
      out.push_back(std::to_string(part) + " does not divide " + what + " (" +
                    std::to_string(whole) + ")");
  };
  divides(layout.tensor, run.model.attention.heads, "the attention heads");
  divides(layout.context, static_cast<std::uint64_t>(run.sequence), "the sequence");
  divides(layout.data * layout.microbatch, layout.batch, "the batch");
  if (run.model.has_experts()) {
    divides(layout.expert, run.model.moe.experts, "the experts");
    divides(layout.expert, layout.data * layout.context * layout.tensor, "the ranks of a stage");
  } else if (layout.expert != 1) {
    out.push_back("expert parallelism of " + std::to_string(layout.expert) +
                  " but the model has no experts; 1 is the only degree");
  }
  // The embedding and the head may have pieces of their own.
  if (layout.pipeline == 0 || layout.chunks == 0 ||
      layout.pipeline * layout.chunks > run.model.blocks + 2)
    out.push_back("more stages than layers");
  return out;
}

BlockSeconds block_seconds(const ArchitectureRun& run,
                           std::uint32_t block,
                           const Layout& layout,
                           const Framework& framework,
                           const TrainingCluster& cluster) {
  const BlockShape shape = block_shape(run.model, block, run.sequence);
  const BlockCut cut = cut_of(layout, framework);
  const BlockOps ops = block_ops(shape, cut);
  const Interconnect& net = cluster.net;
  const Seconds tensor = tensor_traffic(run, layout, framework, net);
  const Seconds traffic = tensor + expert_traffic(shape, layout, framework, net);
  const Seconds plain = ops_seconds(ops.forward, cluster.device);
  const double ring = ring_bytes(shape, cut);
  BlockSeconds out;
  out.attention = ops_seconds(ops.attention_forward, cluster.device);
  out.attention += ring_exposed(ring, out.attention, layout, net);
  const Seconds attention_back = ops_seconds(ops.attention_backward, cluster.device);
  const Seconds host = framework.host_per_op;
  out.forward = std::max(plain + out.attention + traffic, framework.forward_ops * host);
  // Keys and values go round, and with them the gradients of both.
  out.backward = std::max(ops_seconds(ops.backward, cluster.device) + attention_back +
                              ring_exposed(2 * ring, attention_back, layout, net) + traffic,
                          framework.backward_ops * host);
  out.tensor = 2 * tensor;
  if (layout.alternate_products) {
    out.backward += plain / 2;
  } else if (layout.recompute == Recompute::selective) {
    out.backward += layout.recomputed_blocks * out.attention;
  } else if (layout.recompute == Recompute::full) {
    out.backward += layout.recomputed_blocks * out.forward;
    out.tensor += layout.recomputed_blocks * tensor;
  }
  for (Seconds* part : {&out.forward, &out.backward, &out.attention, &out.tensor})
    *part /= framework.efficiency;
  return out;
}

StepSeconds step_seconds(const ArchitectureRun& run,
                         const Layout& layout,
                         const Framework& framework,
                         const TrainingCluster& cluster) {
  EXPECTS(layout_faults(run, layout).empty());
  return gathers_layers(layout, framework) ? sharded_step(run, layout, framework, cluster)
                                           : pipelined_step(run, layout, framework, cluster);
}

double device_flops(const ArchitectureRun& run, const Layout& layout) {
  BlockCut cut = cut_of(layout, {});
  cut.context_balanced = true;
  double sum = total_flops(output_ops(block_shape(run.model, 0, run.sequence), cut));
  for (std::uint32_t i = 0; i < run.model.blocks; ++i) {
    const BlockOps ops = block_ops(block_shape(run.model, i, run.sequence), cut);
    const double forward = total_flops(ops.forward), attention = total_flops(ops.attention_forward);
    sum += forward + attention + total_flops(ops.backward) + total_flops(ops.attention_backward);
    if (layout.alternate_products)
      sum += forward / 2;
    else if (layout.recompute == Recompute::selective)
      sum += layout.recomputed_blocks * attention;
    else if (layout.recompute == Recompute::full)
      sum += layout.recomputed_blocks * (forward + attention);
  }
  return sum * real(layout.microbatches()) / real(layout.pipeline);
}

}  // namespace troupe
