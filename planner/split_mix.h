/// Random numbers for searches: a seed gives the same ones with every library. SplitMix64 (Steele,
/// Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators", figure 17).
#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe {

class SplitMix {
 public:
  explicit SplitMix(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()() {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31U);
  }
  /// From 0 to count - 1; a bias of count / 2^64. Promise: count > 0.
  std::size_t below(std::size_t count) { return static_cast<std::size_t>((*this)() % count); }

 private:
  std::uint64_t state_;
};

}  // namespace troupe
