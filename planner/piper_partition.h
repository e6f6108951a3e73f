/// Splits a graph of layers into pipeline stages, each with its own number of devices, degrees of
/// data and tensor parallelism and a variant (say, with or without recomputation) for every layer.
///
/// Problem and cost model: Tarnawski et al. 2021 ("Piper: multidimensional planner for DNN
/// parallelization", section 3). All devices are equal and reach each other at one bandwidth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "planner/result.h"
#include "planner/units.h"

namespace troupe {

/// One way to run a layer on a given number of tensor-parallel devices.
struct LayerVariant {
  std::string name;
  Seconds time = 0;            ///< forward and backward of one microbatch
  double parameter_bytes = 0;  ///< on each device
  /// Memory on each device: per microbatch in flight, and besides.
  double bytes_in_flight = 0, bytes_fixed = 0;
  /// What tensor parallelism adds to the bytes of an edge that crosses stages, by the other end.
  std::map<std::uint32_t, double> input_bytes, output_bytes;
};
struct ParallelLayer {
  std::string name;
  std::map<std::uint32_t, std::vector<LayerVariant>> variants;  ///< by tensor-parallel degree
};
struct LayerEdge {
  std::uint32_t source = 0, destination = 0;  ///< indices of layers
  double bytes = 0;                           ///< of one microbatch, one direction
};
struct LayerGraph {
  std::vector<ParallelLayer> layers;
  std::vector<LayerEdge> edges;
};

struct StageOptions {
  std::uint32_t devices = 1;
  double memory_bytes = 0;  ///< of each device
  BytesPerSecond bandwidth = 0;
  /// In a batch. The degree of data parallelism of a stage divides it.
  std::uint32_t microbatches = 1;
  std::size_t ideal_limit = 40'000;
  Bytes table_limit = 2ULL << 30;  ///< of the search's own memory
};

struct ParallelStage {
  std::vector<std::uint32_t> layers;    ///< by number
  std::vector<std::uint32_t> variants;  ///< of each of them, for its tensor-parallel degree
  std::uint32_t data_parallel = 1, tensor_parallel = 1;
};
struct ParallelPlan {
  std::vector<ParallelStage> stages;  ///< in topological order
  Seconds time_per_microbatch = 0;    ///< of the slowest stage
};

/// The stages of least time per microbatch. That of a stage with degrees d (data) and t (tensor):
///   sum of times / d
///   + sum over edges that cross its border of 2 (edge bytes + the layer's own) / d / bandwidth
///   + sum of 4 (d - 1) / d parameter bytes / microbatches / bandwidth.
/// A device of the stage holds ceil(D / d) microbatches in flight, D the sum of data-parallel
/// degrees of this stage and those after it; D never exceeds the number of microbatches.
///
/// Method: dynamic programming over the ideals of the reversed graph, devices used and D. Within a
/// stage the fastest variants are replaced, those that cost least time per byte saved first, until
/// memory suffices: the one step that is not exact.
///
/// Errors: invalid_input for an empty graph, edges to unknown layers, repeated or circular edges,
/// an edge that a variant does not mention (or one that is not there), or a number that is not
/// positive or not finite where it has to be; does_not_fit when no plan fits; out_of_memory when
/// the graph is too wide for the search.
Result<ParallelPlan> plan_stages(const LayerGraph& graph, const StageOptions& options);

/// The time of the slowest stage of a given plan, by the formula above. Errors: invalid_input for a
/// plan that is not one of this graph; does_not_fit names the stage and its memory.
Result<Seconds> price_stages(const LayerGraph& graph,
                             const StageOptions& options,
                             const std::vector<ParallelStage>& stages);

}  // namespace troupe
