/// Units: bytes in 64 bits, seconds and rates in double. Text forms carry their unit ("24 GiB").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "planner/result.h"

namespace troupe {

using Bytes = std::uint64_t;
using Seconds = double;
using Flops = double;  ///< floating-point operations; a multiply-add counts as two
using FlopsPerSecond = double;
using BytesPerSecond = double;

inline namespace literals {
constexpr Bytes operator""_KiB(unsigned long long n) {
  return n << 10;
}
constexpr Bytes operator""_MiB(unsigned long long n) {
  return n << 20;
}
constexpr Bytes operator""_GiB(unsigned long long n) {
  return n << 30;
}
}  // namespace literals

/// "1.50 GiB", "12.0 MiB", "512 B": three significant digits, binary units.
std::string format_bytes(Bytes bytes);
/// "1.23 s", "4.56 ms", "7.89 us": three significant digits.
std::string format_seconds(Seconds seconds);

/// Reads "24 GiB", "1.5GB", "512 MiB", "4096 B" (KiB/MiB/GiB/TiB are powers of 1024, kB/KB/MB/GB/TB
/// powers of 1000). A bare number is refused: sizes carry units.
Result<Bytes> parse_bytes(std::string_view text);
/// Reads "10 s", "250 ms", "50us", "2 min", "1 h". A bare number is refused.
Result<Seconds> parse_seconds(std::string_view text);
/// Reads "12 GB/s", "900 MiB/s".
Result<BytesPerSecond> parse_rate(std::string_view text);

}  // namespace troupe
