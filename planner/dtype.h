/// Element types of tensors, and their sizes.
#pragma once

#include <cstdint>
#include <string_view>

#include "planner/units.h"

namespace troupe {

enum class DType : std::uint8_t { f32, bf16, i32, u16 };

constexpr Bytes size_of(DType type) {
  return type == DType::f32 || type == DType::i32 ? 4 : 2;
}

constexpr std::string_view to_string(DType type) {
  switch (type) {
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::i32: return "i32";
    case DType::u16: return "u16";
  }
  return "unknown";
}

}  // namespace troupe
