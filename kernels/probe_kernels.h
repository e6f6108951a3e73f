/// Measures what this device's kernels reach: the rates that plans are priced with.
#pragma once

#include <string>
#include <vector>

#include "devices/device.h"
#include "planner/cost.h"

namespace troupe::kernels {

/// Rates of matrix products by class of shape (M x K by K x N).
struct ProductRates {
  FlopsPerSecond large = 0;  ///< 512 x 512 by 512 x 768: what layers of a transformer look like
  FlopsPerSecond small = 0;  ///< 64 x 64 by 64 x 64: one head's attention
  FlopsPerSecond thin = 0;   ///< 8 x 768 by 768 x 768: few tokens, bound by reading the weights
};

struct KernelRates {
  DeviceRates rates;  ///< matmul_f32 and matmul_bf16 are those of large products
  ProductRates f32, bf16;
};

/// Runs matrix products, an elementwise op and a copy on a fast stream for about `budget` seconds;
/// at least three times each, so that no budget is too small. action_overhead is left 0: it belongs
/// to whoever runs actions.
/// `unsteady`, where given, gets the names of what took so unlike times that it was not measured
/// well (is_unsteady).
KernelRates measure_kernels(Stream& stream,
                            Seconds budget = 0.5,
                            std::vector<std::string>* unsteady = nullptr);

/// The rates alone.
DeviceRates measure_rates(Stream& stream);

}  // namespace troupe::kernels
