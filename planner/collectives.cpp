#include "planner/collectives.h"

#include <algorithm>
#include <cmath>

#include "planner/result.h"

namespace troupe {
namespace {

BytesPerSecond rate_of(const Group& group, const Interconnect& net) {
  const double share = group.members > 2 ? net.ring_achievable : net.node_achievable;
  return group.within_node ? net.intra : net.node * share / group.sharing;
}

}  // namespace

Seconds all_reduce_seconds(double bytes, const Group& group, const Interconnect& net) {
  EXPECTS(group.members >= 1 && group.sharing >= 1);
  if (group.members <= 1) return 0;
  const double g = group.members;
  const Seconds start = group.within_node ? net.intra_start + 2 * (g - 1) * net.intra_hop
                                          : 2 * std::log2(g) * net.inter_start;
  return start + 2 * (g - 1) / g * bytes / rate_of(group, net);
}

Seconds reduce_scatter_seconds(double bytes, const Group& group, const Interconnect& net) {
  if (group.members <= 1) return 0;
  const double g = group.members;
  const Seconds start = group.within_node ? net.intra_start + (g - 1) * net.intra_hop
                                          : std::log2(g) * net.inter_start;
  return start + (g - 1) / g * bytes / rate_of(group, net);
}

Seconds all_gather_seconds(double bytes, const Group& group, const Interconnect& net) {
  return reduce_scatter_seconds(bytes, group, net);
}

Seconds ring_latency_seconds(const Group& group, const Interconnect& net) {
  if (group.members <= 1) return 0;
  if (group.within_node) return (group.members - 1) * net.ring_hop_within;
  const double nodes = std::max(2.0, group.members * group.sharing / net.devices_per_node);
  return (nodes - 1) * net.ring_hop_between +
         std::max(0.0, group.members - nodes) * net.ring_hop_within;
}

Seconds all_to_all_seconds(double bytes, const Group& group, const Interconnect& net) {
  if (group.members <= 1) return 0;
  const double g = group.members;
  const Seconds start = group.within_node ? net.intra_start : net.inter_start;
  return start + (g - 1) / g * bytes / rate_of(group, net);
}

Seconds owner_broadcast_seconds(double bytes, const Group& group, const Interconnect& net) {
  if (group.members <= 1) return 0;
  const Seconds hop = group.within_node ? net.intra_hop : net.inter_start;
  const Seconds start = group.within_node ? net.intra_start : 0;
  return bytes / rate_of(group, net) + group.members * (start + group.members * hop);
}

Seconds ring_step_seconds(double bytes, const Group& group, const Interconnect& net) {
  if (group.members <= 1) return 0;
  return (group.within_node ? net.intra_start : net.inter_start) + bytes / rate_of(group, net);
}

Seconds expert_exchange_seconds(const ExpertRows& rows,
                                const Group& group,
                                const Interconnect& net) {
  const double g = group.members;
  if (g <= 1) return 0;
  const double bytes = rows.tokens * rows.row_bytes;
  const Seconds near = bytes * rows.top_k * (g - 1) / g / net.intra;
  if (group.within_node) return net.intra_start + near;
  const double nodes = std::ceil(g / net.devices_per_node);
  // Of the other nodes, those that at least one of top_k even draws falls on.
  const double reached = (nodes - 1) * (1 - std::pow(1 - 1 / nodes, rows.top_k));
  const BytesPerSecond port = net.node * net.node_achievable / net.devices_per_node;
  return net.inter_start * std::log2(nodes) + std::max(near, bytes * reached / port);
}

Seconds stage_transfer_seconds(double bytes,
                               double tensor,
                               bool within_node,
                               const Interconnect& net) {
  EXPECTS(tensor >= 1);
  if (within_node) return net.transfer_start + bytes / net.intra;
  const BytesPerSecond port = net.node * net.node_achievable / net.devices_per_node;
  return net.transfer_start + bytes / tensor / port + bytes * (tensor - 1) / tensor / net.intra;
}

}  // namespace troupe
