#include "kernels/layers/parameters.h"

#include <array>

namespace troupe::kernels {
namespace {

bool ends_with(const std::string& name, std::string_view suffix) {
  return std::string_view(name).ends_with(suffix);
}

/// No gap between this parameter and the one after it.
bool joins_next(const Parameter& parameter) {
  const std::string& name = parameter.spec.name;
  return ends_with(name, "q_proj.weight") || ends_with(name, "k_proj.weight") ||
         ends_with(name, "gate_proj.weight");
}

/// Products read bf16 copies; look-ups, norms and biases read the f32 weights.
bool needs_copy(const Parameter& parameter, LayerKind kind, DType compute) {
  return compute == DType::bf16 && kind != LayerKind::embedding && parameter.spec.shape.size() == 2;
}

Tensor shaped(std::byte* data, DType dtype, const std::vector<std::uint64_t>& shape) {
  EXPECTS(shape.size() == 1 || shape.size() == 2);
  return shape.size() == 1 ? make_tensor(data, dtype, {shape[0]})
                           : make_tensor(data, dtype, {shape[0], shape[1]});
}

/// Carves one tensor per parameter of a group without gaps.
template <class Place>
void carve_group(std::span<Parameter> group, DType dtype, Area& area, Place place) {
  std::uint64_t elements = 0;
  for (const Parameter& parameter : group) elements += parameter.spec.elements();
  const Tensor whole = area.tensor(dtype, {elements});
  std::byte* data = whole.data;
  for (Parameter& parameter : group) {
    place(parameter) = shaped(data, dtype, parameter.spec.shape);
    if (data != nullptr) data += parameter.spec.elements() * size_of(dtype);
  }
}

}  // namespace

std::vector<Parameter> layer_parameters(const ModelSpec& model,
                                        std::uint32_t layer,
                                        Share table_share) {
  std::vector<Parameter> list;
  const std::vector<ParameterSpec> all = parameters_of(model);
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    if (all[i].layer != layer) continue;
    Parameter parameter;
    parameter.spec = all[i];
    parameter.tensor = i;
    parameter.written_first =
        layer_kind(model, layer) == LayerKind::block && all[i].shape.size() == 2;
    list.push_back(parameter);
  }
  if (model.tied && layer_kind(model, layer) == LayerKind::head) {
    EXPECTS(table_share != Share::none);
    Parameter table;
    table.spec = all[0];
    table.tensor = 0;
    table.share = table_share;
    list.push_back(table);
  }
  return list;
}

void carve_parameters(std::span<Parameter> parameters,
                      LayerKind kind,
                      DType compute,
                      ParameterAreas& areas) {
  for (std::size_t begin = 0; begin < parameters.size();) {
    std::size_t end = begin + 1;
    while (end < parameters.size() && joins_next(parameters[end - 1])) ++end;
    const std::span<Parameter> group = parameters.subspan(begin, end - begin);
    const auto weight = [](Parameter& p) -> Tensor& { return p.weight; };
    const auto copy = [](Parameter& p) -> Tensor& { return p.compute; };
    const auto gradient = [](Parameter& p) -> Tensor& { return p.gradient; };
    const auto first = [](Parameter& p) -> Tensor& { return p.first_moment; };
    const auto second = [](Parameter& p) -> Tensor& { return p.second_moment; };
    carve_group(group, DType::f32, areas.gradients, gradient);
    if (group[0].share != Share::half) {
      carve_group(group, DType::f32, areas.weights, weight);
      carve_group(group, DType::f32, areas.optimizer, first);
      carve_group(group, DType::f32, areas.optimizer, second);
    }
    if (needs_copy(group[0], kind, compute))
      carve_group(group, DType::bf16, areas.weights, copy);
    else
      for (Parameter& parameter : group) parameter.compute = parameter.weight;
    begin = end;
  }
}

Parameter& parameter_named(std::span<Parameter> parameters, std::string_view suffix) {
  Parameter* found = nullptr;
  for (Parameter& parameter : parameters)
    if (ends_with(parameter.spec.name, suffix)) found = &parameter;
  EXPECTS(found != nullptr);
  return *found;
}

Tensor stacked(const Tensor& first, std::uint64_t rows) {
  return make_tensor(first.data, first.dtype, {rows, first.columns()});
}

}  // namespace troupe::kernels
