#include "kernels/layers/layer.h"

namespace troupe::kernels {

Tensor as_rows(const Tensor& tensor) {
  if (tensor.rank <= 2) return tensor;
  EXPECTS(tensor.rank == 3 && tensor.dense());
  return make_tensor(tensor.data, tensor.dtype,
                     {tensor.shape[0] * tensor.shape[1], tensor.shape[2]});
}

Tensor scratch(Area& area, Bytes bytes) {
  return area.tensor(DType::f32, {(bytes + 3) / 4});
}

}  // namespace troupe::kernels
