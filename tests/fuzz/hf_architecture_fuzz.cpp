/// Any bytes as a Hugging Face config.json of any family: an error, or a model that survives being
/// written as a model file and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "actors/checkpoint/hf_architecture.h"
#include "apps/architecture_file.h"
#include "planner/trainable.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto model = troupe::architecture_from_hf_config(text, "fuzz");
  if (!model.ok()) {
    if (model.error().text.empty()) std::abort();
    return 0;
  }
  if (!troupe::validate(*model).ok()) std::abort();
  std::vector<troupe::ConfigProblem> problems;
  const auto again =
      troupe::parse_architecture(troupe::architecture_text(*model), "fuzz", problems);
  if (!again || !(*again == *model)) std::abort();
  const auto trained = troupe::trainable(*model);
  if (trained.ok() && !(troupe::architecture_of(*trained) == *model)) std::abort();
  return 0;
}
