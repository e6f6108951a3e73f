/// Random numbers for searches and orders: a seed gives the same ones with every library.
/// SplitMix64 (Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators", figure
/// 17).
#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe {

/// One number of the sequence, whatever its state was: a fixed mixing of 64 bits.
constexpr std::uint64_t split_mix(std::uint64_t state) {
  std::uint64_t x = state + 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

class SplitMix {
 public:
  explicit SplitMix(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()() {
    const std::uint64_t state = state_;
    state_ += 0x9e3779b97f4a7c15U;
    return split_mix(state);
  }
  /// From 0 to count - 1; a bias of count / 2^64. Promise: count > 0.
  std::size_t below(std::size_t count) { return static_cast<std::size_t>((*this)() % count); }

 private:
  std::uint64_t state_;
};

}  // namespace troupe
