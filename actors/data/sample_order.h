/// In which order samples are trained: a function of (seed, step, batch size) alone, so that a
/// resumed run, on any placement, sees exactly the samples that the uninterrupted one would see.
/// No list is kept: the order of an epoch is a permutation computed element by element.
#pragma once

#include <cstdint>
#include <vector>

namespace troupe {

/// The sample at `position` of `epoch`: for each (seed, epoch) a permutation of 0..count-1.
/// A six-round Feistel network over the next even power of two, walked until it lands below
/// `count` (Black and Rogaway 2002, "cycle walking"); at most four rounds of walking on average.
/// Requires position < count.
std::uint64_t sample_at(std::uint64_t seed,
                        std::uint64_t epoch,
                        std::uint64_t position,
                        std::uint64_t count);

/// Samples of a step, in order. Steps count from 1; epochs follow each other without a gap, a batch
/// may span two. Requires step >= 1 and count >= 1.
std::vector<std::uint64_t> samples_of_step(std::uint64_t seed,
                                           std::uint64_t step,
                                           std::uint32_t batch_size,
                                           std::uint64_t count);

}  // namespace troupe
