/// Counter-based random numbers: Philox 4x32-10 (Salmon et al. 2011). A number depends on its key
/// and counter alone, so placement, order and threads never change it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "devices/device.h"
#include "devices/tensor.h"
#include "kernels/elementwise.h"

namespace troupe::kernels {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

/// Four random words.
PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key);

/// The words of elements [4 block, 4 block + 4) of a sample; an element is kept when its word is at
/// least the threshold. All that a dropout mask is.
PhiloxCounter dropout_words(const DropoutKey& key, std::uint64_t sample, std::uint64_t block);
PhiloxKey dropout_philox_key(const DropoutKey& key);
std::uint32_t dropout_threshold(double p);
float dropout_scale(double p);

/// Element i of out = standard_deviation * normal(seed, name, i), by Box-Muller. Dense f32.
/// The same on every stream body, bit for bit.
void fill_normal(Stream& stream,
                 Tensor out,
                 std::uint64_t seed,
                 std::string_view name,
                 double standard_deviation);

}  // namespace troupe::kernels
