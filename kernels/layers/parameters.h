/// The parameters of a layer with the memory behind them. Weights, gradients and optimizer state of
/// a layer are one block each; parameters that one product can serve (q, k, v; gate, up) lie
/// without a gap, everything else begins at a multiple of 64 bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/layers/area.h"
#include "planner/model.h"

namespace troupe::kernels {

/// Who a parameter's state belongs to.
enum class Share : std::uint8_t {
  none,  ///< only here
  copy,  ///< a tied head whose embedding is in another stage: everything twice, same bits
  half   ///< a tied head beside its embedding: an own gradient, the rest is the embedding's
};

struct Parameter {
  ParameterSpec spec;
  std::uint32_t tensor = 0;  ///< global index
  Share share = Share::none;
  Tensor weight;                       ///< f32
  Tensor compute;                      ///< what products read: bf16 copy, or the weight itself
  Tensor gradient;                     ///< f32
  Tensor first_moment, second_moment;  ///< f32; rank 0 for Share::half
  /// Its gradient is written whole by the first backward of a step, so nobody needs to clear it.
  bool written_first = false;
  bool has_copy() const { return compute.rank > 0 && compute.dtype == DType::bf16; }
};

/// The parameters a layer uses, in global order, without memory. A tied head ends with the token
/// table, shared as `table_share` says.
std::vector<Parameter> layer_parameters(const ModelSpec& model,
                                        std::uint32_t layer,
                                        Share table_share);

/// Areas to carve a layer's parameters from.
struct ParameterAreas {
  Area weights, gradients, optimizer;
};

/// Gives every parameter its tensors; the same walk counts (unbounded areas) and carves.
void carve_parameters(std::span<Parameter> parameters,
                      LayerKind kind,
                      DType compute,
                      ParameterAreas& areas);

/// The parameter whose name ends so; it must be there.
Parameter& parameter_named(std::span<Parameter> parameters, std::string_view suffix);

/// `first` and the tensors after it as one matrix of `rows` rows: of parameters without a gap.
Tensor stacked(const Tensor& first, std::uint64_t rows);

}  // namespace troupe::kernels
