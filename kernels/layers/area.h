/// Carves tensors out of a block, front to back. Layer code describes its buffers once, by carving
/// them; carving from an unbounded area without memory is how their bytes are counted.
#pragma once

#include <cstddef>
#include <initializer_list>

#include "devices/arena.h"
#include "devices/tensor.h"
#include "planner/result.h"

namespace troupe::kernels {

/// Does not own. Every tensor begins at a multiple of the arena's granularity, so `used()` of a
/// sequence of areas adds up like separate blocks.
class Area {
 public:
  /// Counts only: tensors have no data.
  Area() = default;
  /// `data` is null on the meta device.
  Area(std::byte* data, Bytes capacity) : data_(data), capacity_(capacity), bounded_(true) {}

  Tensor tensor(DType dtype, std::initializer_list<std::uint64_t> shape) {
    Tensor carved = make_tensor(at(used_), dtype, shape);
    used_ += arena_bytes(carved.bytes());
    EXPECTS(!bounded_ || used_ <= capacity_);
    return carved;
  }
  /// The next `bytes` (a multiple of the granularity) as an area of their own.
  Area area(Bytes bytes) {
    EXPECTS(arena_bytes(bytes) == bytes);
    if (!bounded_) {
      used_ += bytes;
      return Area();
    }
    Area carved(at(used_), bytes);
    used_ += bytes;
    EXPECTS(used_ <= capacity_);
    return carved;
  }
  Bytes used() const { return used_; }

 private:
  std::byte* at(Bytes offset) const { return data_ == nullptr ? nullptr : data_ + offset; }
  std::byte* data_ = nullptr;
  Bytes capacity_ = 0;
  Bytes used_ = 0;
  bool bounded_ = false;
};

}  // namespace troupe::kernels
