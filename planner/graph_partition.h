/// Splits any graph of layers or operators over equal devices so that the busiest device, which
/// sets the pace of a pipeline, has as little to do as possible.
///
/// The objective is that of Tarnawski et al. 2020 ("Efficient algorithms for device placement of
/// DNN graph operators", max-load or throughput model): the load of a device is the time of its
/// nodes, plus the transfer time of each distinct node of its own whose output is needed elsewhere,
/// plus the transfer time of each distinct node elsewhere whose output it needs. A host, whose
/// memory the devices exchange their data through, has its nodes' host time as its only load, and
/// memory enough.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/result.h"

namespace troupe {

/// Times are all in one unit, whichever it is.
struct GraphNode {
  std::string name;
  double time = 0;           ///< on a device
  double host_time = 0;      ///< on a host
  double transfer_time = 0;  ///< to bring its output onto or off a device, once
  double bytes = 0;          ///< of device memory
  bool backward = false;     ///< belongs to the backward pass
  bool host_only = false;    ///< cannot run on a device
  /// Nodes of the same class stay on one device: a forward node with its backward node, and nodes
  /// that share weights.
  std::optional<std::uint32_t> colocation;
};
struct GraphEdge {
  std::uint32_t source = 0, destination = 0;  ///< indices of nodes
};
struct PartitionGraph {
  std::vector<GraphNode> nodes;
  std::vector<GraphEdge> edges;
};

struct GraphPartitionOptions {
  std::uint32_t devices = 1;
  std::uint32_t hosts = 0;  ///< that take nodes, too: at most one part each
  double memory_bytes = 0;  ///< of each device
  /// Graphs with more ideals are split along one topological order only. So are those whose table
  /// would take more than 1.6 GB.
  std::size_t ideal_limit = 1'000'000;
  /// Assignments that the search without contiguity tries before it settles for the best so far.
  std::uint64_t step_limit = 20'000'000;
};

struct GraphPart {
  std::vector<std::uint32_t> nodes;  ///< by number; never empty
  double time = 0, transfer = 0;
  double bytes = 0;
  bool host = false;  ///< lies on a host
  double load() const { return time + transfer; }
};
struct GraphPartition {
  std::vector<GraphPart> parts;  ///< in topological order if contiguous
  double max_load = 0;
  bool proven = false;         ///< nothing better exists
  std::size_t components = 0;  ///< groups of nodes that cannot be separated
  std::size_t ideals = 0;      ///< of the graph of those groups; 0: not counted
};

/// The best split into at most `devices` parts and `hosts` parts on hosts that can be ordered so
/// that every edge between forward nodes stays inside a part or leads to a later one; backward
/// nodes follow their class. A class without forward nodes is ordered by its backward edges,
/// reversed.
///
/// Method: co-located classes and the cycles between them become components; dynamic programming
/// over pairs of ideals of the component graph, with pairs cut off by the time of the part against
/// the best split known (at first the best one along a topological order).
///
/// Errors: invalid_input for an empty graph, no device or host, an edge to an unknown node or to
/// itself, a cycle, an edge from a backward to a forward node, or a number that is negative or not
/// finite; does_not_fit when memory allows no split.
Result<GraphPartition> partition_contiguous(const PartitionGraph& graph,
                                            const GraphPartitionOptions& options);

/// As partition_contiguous, but any component may go to any device. Branch and bound, from the best
/// contiguous split; not proven when `step_limit` was reached.
Result<GraphPartition> partition_anyhow(const PartitionGraph& graph,
                                        const GraphPartitionOptions& options);

constexpr std::uint32_t no_host = 0xffffffffU;

/// The parts that an assignment makes, straight from the definition of the objective; a device
/// without nodes has no part. Devices of number `first_host` and above are hosts. Memory is not
/// checked. Errors: as above, and an assignment of another length.
Result<GraphPartition> price_partition(const PartitionGraph& graph,
                                       const std::vector<std::uint32_t>& device_of_node,
                                       std::uint32_t first_host = no_host);

}  // namespace troupe
