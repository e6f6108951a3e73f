/// Reads the published inputs of graph partitioning.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "planner/graph_partition.h"
#include "planner/piper_partition.h"
#include "tests/support/published_table.h"

namespace troupe::testing {

/// The graphs of partition_oracle_nodes and partition_oracle_edges, by workload. Throws
/// std::exception for what is not a number or not in the table.
inline std::map<std::string, PartitionGraph> read_partition_graphs(const published::Table& nodes,
                                                                   const published::Table& edges) {
  std::map<std::string, PartitionGraph> graphs;
  std::map<std::pair<std::string, std::string>, std::uint32_t> index;
  for (const published::Row& row : nodes.rows()) {
    auto& graph = graphs[row.text("workload")];
    if (!index
             .try_emplace({row.text("workload"), row.text("id")},
                          static_cast<std::uint32_t>(graph.nodes.size()))
             .second) {
      throw std::invalid_argument(row.text("workload") + ": node " + row.text("id") + " repeats");
    }
    GraphNode node;
    node.name = row.text("name");
    node.time = row.number("accelerator_time");
    node.host_time = row.number("cpu_time");
    node.host_only = row.text("supported_on_accelerator") != "1";
    node.bytes = row.number("size_bytes");
    node.backward = row.text("is_backward") == "1";
    if (!row.text("color_class").empty())
      node.colocation = static_cast<std::uint32_t>(row.integer("color_class"));
    graph.nodes.push_back(node);
  }
  for (const published::Row& row : edges.rows()) {
    auto& graph = graphs.at(row.text("workload"));
    const auto source = index.at({row.text("workload"), row.text("source_id")});
    const auto destination = index.at({row.text("workload"), row.text("dest_id")});
    graph.nodes[source].transfer_time = row.number("transfer_time");
    graph.edges.push_back({source, destination});
  }
  return graphs;
}

/// The graphs of piper_bert32_profile and piper_bert32_edges, by workload.
inline std::map<std::string, LayerGraph> read_layer_graphs(const published::Table& profile,
                                                           const published::Table& edges) {
  std::map<std::string, LayerGraph> graphs;
  std::map<std::pair<std::string, std::string>, std::uint32_t> index;
  for (const published::Row& row : profile.rows()) {
    auto& graph = graphs[row.text("workload")];
    const auto [found, added] = index.try_emplace({row.text("workload"), row.text("node")},
                                                  static_cast<std::uint32_t>(graph.layers.size()));
    if (added) graph.layers.push_back({row.text("name"), {}});
  }
  for (const published::Row& row : profile.rows()) {
    LayerVariant variant;
    variant.name = row.text("variant");
    variant.time = row.number("time_per_sample_s");
    variant.parameter_bytes = row.number("param_bytes");
    variant.bytes_in_flight = row.number("mem_a");
    variant.bytes_fixed = row.number("mem_b");
    const auto bytes = [&](const char* column) {
      std::map<std::uint32_t, double> result;
      const auto object = nlohmann::json::parse(row.text(column));
      for (const auto& [node, value] : object.items())
        result[index.at({row.text("workload"), node})] = value.get<double>();
      return result;
    };
    variant.input_bytes = bytes("sync_fw_json");
    variant.output_bytes = bytes("sync_bw_json");
    graphs[row.text("workload")]
        .layers[index.at({row.text("workload"), row.text("node")})]
        .variants[static_cast<std::uint32_t>(row.integer("tp"))]
        .push_back(std::move(variant));
  }
  for (const published::Row& row : edges.rows()) {
    graphs.at(row.text("workload"))
        .edges.push_back({index.at({row.text("workload"), row.text("source_id")}),
                          index.at({row.text("workload"), row.text("dest_id")}),
                          row.number("bytes")});
  }
  return graphs;
}

}  // namespace troupe::testing
