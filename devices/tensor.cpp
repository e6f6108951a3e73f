#include "devices/tensor.h"

namespace troupe {

Tensor make_tensor(std::byte* data, DType dtype, std::initializer_list<std::uint64_t> shape) {
  Tensor t;
  EXPECTS(shape.size() <= t.shape.size());
  t.data = data;
  t.dtype = dtype;
  t.rank = static_cast<std::uint32_t>(shape.size());
  std::size_t i = 0;
  for (const std::uint64_t extent : shape) t.shape[i++] = extent;
  t.row_stride = t.columns();
  return t;
}

}  // namespace troupe
