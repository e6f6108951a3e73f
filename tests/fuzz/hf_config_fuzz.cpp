/// Any bytes as a Hugging Face config.json: an error, or a model that survives writing and reading.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "actors/checkpoint/hf_config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto model = troupe::model_from_hf_config(text, "fuzz");
  if (!model.ok()) {
    if (model.error().text.empty()) std::abort();
    return 0;
  }
  if (!troupe::validate(*model).ok()) std::abort();
  const auto again = troupe::model_from_hf_config(troupe::hf_config_text(*model), "fuzz");
  if (!again.ok() || !(*again == *model)) std::abort();
  return 0;
}
