/// A borrowed view of elements in a device's memory: type, up to four dimensions, dense row-major
/// except that rows of the last dimension may be `row_stride` elements apart (slices of QKV).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "planner/dtype.h"
#include "planner/result.h"

namespace troupe {

/// Does not own. `data` is null on the meta device.
struct Tensor {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::uint32_t rank = 0;
  std::array<std::uint64_t, 4> shape{};
  std::uint64_t row_stride = 0;  ///< elements from one row (last dimension) to the next

  std::uint64_t elements() const {
    std::uint64_t n = 1;
    for (std::uint32_t i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
  std::uint64_t columns() const { return rank == 0 ? 1 : shape[rank - 1]; }
  std::uint64_t rows() const { return columns() == 0 ? 0 : elements() / columns(); }
  Bytes bytes() const { return elements() * size_of(dtype); }
  bool dense() const { return row_stride == columns(); }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
};

/// A dense view over `data`.
Tensor make_tensor(std::byte* data, DType dtype, std::initializer_list<std::uint64_t> shape);

}  // namespace troupe
