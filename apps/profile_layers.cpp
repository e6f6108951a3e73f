#include "apps/profile_layers.h"

#include "actors/measure.h"
#include "devices/threads.h"

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

Result<MeasuredLayers> measure_profile_layers(std::uint32_t threads,
                                              const DeviceRates& rates,
                                              const std::optional<LayerCase>& own,
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
  if (own) TROUPE_TRY(measure(*own, budget / 4));
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
