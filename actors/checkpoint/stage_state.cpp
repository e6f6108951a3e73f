#include "actors/checkpoint/stage_state.h"

#include <span>

namespace troupe {
namespace {

/// Empty for a moment that the stage does not have.
std::span<float> floats(const Tensor& tensor) {
  if (tensor.rank == 0) return {};
  return {tensor.as<float>(), static_cast<std::size_t>(tensor.elements())};
}

}  // namespace

Status read_state(const Checkpoint& checkpoint, Stage& stage) {
  for (const NamedState& one : stage.state())
    TROUPE_TRY(checkpoint.read(
        {one.name, floats(one.weight), floats(one.first_moment), floats(one.second_moment)}));
  return {};
}

}  // namespace troupe
