/// Seconds of collectives and transfers from latency and bandwidth, within a node and between
/// nodes.
#pragma once

#include "planner/units.h"

namespace troupe {

/// Equal nodes of equal devices.
struct Interconnect {
  double devices_per_node = 8;
  BytesPerSecond intra = 235e9;    ///< bus bandwidth of a device within its node, one direction
  Seconds intra_start = 18e-6;     ///< of a collective within a node
  Seconds intra_hop = 1.5e-6;      ///< of each step of a ring within a node
  BytesPerSecond node = 100e9;     ///< all network ports of a node together, one direction
  double node_achievable = 0.85;   ///< share of it that collectives reach
  Seconds inter_start = 12e-6;     ///< of one message between nodes
  Seconds transfer_start = 20e-6;  ///< of one message between two stages
  /// Share of the ports that rings over many nodes reach: less than a pair of nodes does, where the
  /// routes of many rings meet.
  double ring_achievable = 0.85;
  /// Of each step of a ring of whole gathers, which many small tensors pay (NCCL 2.8's table of
  /// latencies, protocol Simple).
  Seconds ring_hop_within = 3.4e-6, ring_hop_between = 9.6e-6;
};

/// A group of ranks: `members`, of which some may be on one node, while `sharing` such groups use
/// the ports of a node at once.
struct Group {
  double members = 1;
  bool within_node = true;
  double sharing = 1;
};

/// Ring of reduce-scatter and all-gather: 2 (g - 1)/g bytes over the slowest link, a start and
/// 2 (g - 1) hops within a node, 2 log2 g messages (NCCL's trees) between nodes. 0 for one member.
Seconds all_reduce_seconds(double bytes, const Group& group, const Interconnect& net);
/// Half of an all-reduce. `bytes` is the size of the whole, not of one part.
Seconds reduce_scatter_seconds(double bytes, const Group& group, const Interconnect& net);
Seconds all_gather_seconds(double bytes, const Group& group, const Interconnect& net);
/// What a gather costs before its first byte: one way round a ring of all members, node by node.
Seconds ring_latency_seconds(const Group& group, const Interconnect& net);
/// Each member sends (g - 1)/g of its `bytes`, directly.
Seconds all_to_all_seconds(double bytes, const Group& group, const Interconnect& net);
/// Each member in turn sends its part of `bytes` to all others along a ring, one after the other:
/// the bytes once over the slowest link, and a way round the ring for each.
Seconds owner_broadcast_seconds(double bytes, const Group& group, const Interconnect& net);
/// One step of a ring: every member sends `bytes` to its neighbour.
Seconds ring_step_seconds(double bytes, const Group& group, const Interconnect& net);

/// Tokens of one rank on their way to the experts of a group.
struct ExpertRows {
  double tokens = 0, row_bytes = 0;
  double top_k = 1;  ///< experts of a token, spread evenly over the group
};
/// Every copy of a token goes over the links of its node; between nodes a token goes once to each
/// node that has one of its experts and is copied there (DeepEP: both at a time). All devices of a
/// node send at once.
Seconds expert_exchange_seconds(const ExpertRows& rows,
                                const Group& group,
                                const Interconnect& net);
/// Between two pipeline stages of `tensor` ranks each. Between nodes each rank sends its part over
/// its own port and the parts are gathered within the node (SC'21, section 4.1).
Seconds stage_transfer_seconds(double bytes,
                               double tensor,
                               bool within_node,
                               const Interconnect& net);

}  // namespace troupe
