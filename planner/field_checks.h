/// Checks of whole-number fields of a model, with the nearest legal value in the refusal. Internal
/// to the validators of planner/.
#pragma once

#include <cstdint>

#include "planner/result.h"

namespace troupe {

/// A field and its legal values, both ends included.
struct FieldRange {
  const char* field;
  std::uint32_t value;
  std::uint32_t least;
  std::uint32_t most;
};

/// invalid_input: "model.FIELD = VALUE is out of range; the nearest legal value is N".
Status check_range(const FieldRange& range);

/// The divisor of `number` nearest to `wanted`; the smaller of two equally near ones.
std::uint32_t nearest_divisor(std::uint32_t number, std::uint32_t wanted);

/// invalid_input where kv_heads does not divide heads. Promise: kv_heads > 0.
Status check_kv_heads(std::uint32_t heads, std::uint32_t kv_heads);

}  // namespace troupe
