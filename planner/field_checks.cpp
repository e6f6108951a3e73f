#include "planner/field_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace troupe {

Status check_range(const FieldRange& range) {
  if (range.value >= range.least && range.value <= range.most) return {};
  return Error{
      ErrorCode::invalid_input,
      fmt::format("model.{} = {} is out of range; the nearest legal value is {}", range.field,
                  range.value, std::clamp(range.value, range.least, range.most))};
}

std::uint32_t nearest_divisor(std::uint32_t number, std::uint32_t wanted) {
  std::uint32_t best = 1;
  for (std::uint32_t divisor = 1; divisor <= number; ++divisor)
    if (number % divisor == 0 && std::abs(std::int64_t{divisor} - std::int64_t{wanted}) <
                                     std::abs(std::int64_t{best} - std::int64_t{wanted}))
      best = divisor;
  return best;
}

Status check_kv_heads(std::uint32_t heads, std::uint32_t kv_heads) {
  if (heads % kv_heads == 0) return {};
  return Error{ErrorCode::invalid_input,
               fmt::format("model.kv_heads = {} does not divide heads = {}; the nearest that "
                           "does is {}",
                           kv_heads, heads, nearest_divisor(heads, kv_heads))};
}

}  // namespace troupe
