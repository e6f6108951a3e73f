#include "actors/data/sample_order.h"

#include <bit>

#include "planner/result.h"
#include "planner/split_mix.h"

namespace troupe {
namespace {

constexpr int rounds = 6;

}  // namespace

std::uint64_t sample_at(std::uint64_t seed,
                        std::uint64_t epoch,
                        std::uint64_t position,
                        std::uint64_t count) {
  EXPECTS(position < count);
  EXPECTS(count <= std::uint64_t{1} << 62);
  const int bits = static_cast<int>(std::bit_width(count - 1));
  const int half_bits = (bits + 1) / 2 > 0 ? (bits + 1) / 2 : 1;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  const std::uint64_t key = split_mix(split_mix(seed) ^ epoch);
  std::uint64_t value = position;
  do {
    std::uint64_t left = value >> half_bits;
    std::uint64_t right = value & mask;
    for (int round = 0; round < rounds; ++round) {
      const std::uint64_t next =
          left ^
          (split_mix(key + static_cast<std::uint64_t>(round) * 0x632be5abULL + split_mix(right)) &
           mask);
      left = right;
      right = next;
    }
    value = (left << half_bits) | right;
  } while (value >= count);
  return value;
}

std::vector<std::uint64_t> samples_of_step(std::uint64_t seed,
                                           std::uint64_t step,
                                           std::uint32_t batch_size,
                                           std::uint64_t count) {
  EXPECTS(step >= 1);
  EXPECTS(count >= 1);
  std::vector<std::uint64_t> samples;
  samples.reserve(batch_size);
  const std::uint64_t first = (step - 1) * batch_size;
  for (std::uint64_t i = 0; i < batch_size; ++i)
    samples.push_back(sample_at(seed, (first + i) / count, (first + i) % count, count));
  return samples;
}

}  // namespace troupe
