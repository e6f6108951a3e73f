#include "apps/profile_layers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "actors/measure.h"
#include "devices/threads.h"
#include "planner/plan_choice.h"

namespace troupe {

std::vector<LayerCase> reference_layers() {
  struct Size {
    ModelFamily family;
    std::uint32_t width, vocabulary, sequences;
  };
  // As many tokens as small models train at once; fewer where a layer is much work.
  constexpr Size sizes[]{{ModelFamily::gpt2, 64, 256, 16},
                         {ModelFamily::llama, 128, 256, 4},
                         {ModelFamily::gpt2, 128, 256, 16},
                         {ModelFamily::gpt2, 256, 2048, 4},
                         {ModelFamily::llama, 512, 8192, 2}};
  std::vector<LayerCase> cases;
  for (const Size& size : sizes)
    for (const DType compute : {DType::f32, DType::bf16}) {
      LayerCase one;
      one.model.family = size.family;
      one.model.blocks = 1;
      one.model.width = size.width;
      one.model.heads = one.model.kv_heads = size.width / 32;
      one.model.ffn_width = size.family == ModelFamily::gpt2 ? 4 * size.width : size.width * 11 / 4;
      one.model.vocabulary = size.vocabulary;
      one.model.context = 128;
      one.model.tied = size.family == ModelFamily::gpt2;
      one.shape = {1, size.sequences, one.model.context, size.sequences, compute};
      cases.push_back(one);
    }
  return cases;
}

std::vector<LayerCase> own_layers(const ModelSpec& model, const StepShape& shape, bool open) {
  std::vector<LayerCase> cases{{model, shape}};
  if (!open) return cases;
  const std::vector<StepShape> shapes = tried_shapes(shape);
  for (const StepShape& one : {shapes[shapes.size() / 2], shapes.back()})
    if (one.microbatch_size < cases.back().shape.microbatch_size) cases.push_back({model, one});
  return cases;
}

std::string layers_text(const std::vector<LayerRatio>& layers) {
  std::vector<std::pair<std::string, std::vector<std::string>>> types_by_model;
  for (const LayerRatio& row : layers) {
    const std::string model =
        fmt::format("{} of width {}", to_string(row.size.family), row.size.width);
    const std::string type(to_string(row.size.compute));
    auto known = std::find_if(types_by_model.begin(), types_by_model.end(),
                              [&](const auto& one) { return one.first == model; });
    if (known == types_by_model.end()) known = types_by_model.insert(known, {model, {}});
    auto& types = known->second;
    if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
  }
  std::string text;
  for (const auto& [model, types] : types_by_model)
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", model, fmt::join(types, ", "));
  return text;
}

Result<MeasuredLayers> measure_profile_layers(std::uint32_t threads,
                                              const DeviceRates& rates,
                                              const std::vector<LayerCase>& own,
                                              Seconds budget) {
  DeviceSpec device;
  device.name = "profiled";
  device.threads = threads;
  device.rates = rates;
  MeasuredLayers measured;
  const Seconds begin = monotonic_seconds();
  const auto measure = [&](const LayerCase& one, Seconds share) -> Status {
    auto ratios = measure_layer_ratios(device, one.model, one.shape, share, measured.unsteady);
    if (!ratios) return ratios.error();
    measured.ratios.insert(measured.ratios.end(), ratios->begin(), ratios->end());
    return {};
  };
  // A plan's own layers are what it stands on.
  for (const LayerCase& one : own)
    TROUPE_TRY(measure(one, budget / (4.0 * static_cast<double>(own.size()))));
  const auto cases = reference_layers();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Seconds left = begin + budget - monotonic_seconds();
    if (left > 0)
      TROUPE_TRY(measure(cases[i], left / static_cast<double>(cases.size() - i)));
    else
      ++measured.left_out;
  }
  return measured;
}

}  // namespace troupe
