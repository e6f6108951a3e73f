#include "planner/units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace troupe {
namespace {

struct Unit {
  std::string_view name;
  double scale;
};

constexpr std::array<Unit, 11> byte_units{{{"B", 1.0},
                                           {"KiB", 1024.0},
                                           {"MiB", 1048576.0},
                                           {"GiB", 1073741824.0},
                                           {"TiB", 1099511627776.0},
                                           {"kB", 1e3},
                                           {"KB", 1e3},
                                           {"MB", 1e6},
                                           {"GB", 1e9},
                                           {"TB", 1e12},
                                           {"PB", 1e15}}};

constexpr std::array<Unit, 6> time_units{
    {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1.0}, {"min", 60.0}, {"h", 3600.0}}};

/// Splits "1.5 GiB" into a number and the scale of its unit.
template <std::size_t N>
Result<double> parse_quantity(std::string_view text,
                              const std::array<Unit, N>& units,
                              std::string_view what,
                              std::string_view example) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, failure] = std::from_chars(text.data(), end, number);
  const auto refuse = [&](std::string_view why) {
    return Error{
        ErrorCode::invalid_input,
        fmt::format("\"{}\" is not a {}: {}; write it like \"{}\"", text, what, why, example)};
  };
  if (failure != std::errc{} || !std::isfinite(number))
    return refuse("it does not start with a number");
  if (number < 0) return refuse("it is negative");
  std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  if (unit.empty()) return refuse("the unit is missing");
  for (const Unit& known : units)
    if (known.name == unit) return number * known.scale;
  std::string names;
  for (const Unit& known : units)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", known.name);
  return refuse(fmt::format("unknown unit \"{}\" (known: {})", unit, names));
}

}  // namespace

std::string format_bytes(Bytes bytes) {
  constexpr std::array<const char*, 5> names{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < names.size()) {
    value /= 1024.0;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  const int digits = value < 10 ? 2 : value < 100 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, digits, names[unit]);
}

std::string format_seconds(Seconds seconds) {
  const auto print = [](double value, const char* unit) {
    const int digits = value < 10 ? 2 : value < 100 ? 1 : 0;
    return fmt::format("{:.{}f} {}", value, digits, unit);
  };
  if (seconds >= 1 || seconds == 0) return print(seconds, "s");
  if (seconds >= 1e-3) return print(seconds * 1e3, "ms");
  return print(seconds * 1e6, "us");
}

Result<Bytes> parse_bytes(std::string_view text) {
  const auto value = parse_quantity(text, byte_units, "size", "24 GiB");
  if (!value) return value.error();
  if (*value >= 18446744073709551616.0)
    return Error{ErrorCode::invalid_input,
                 fmt::format("\"{}\" is more than 64 bits can count", text)};
  return static_cast<Bytes>(std::llround(std::min(*value, 9.2e18)));
}

Result<Seconds> parse_seconds(std::string_view text) {
  return parse_quantity(text, time_units, "time", "250 ms");
}

Result<BytesPerSecond> parse_rate(std::string_view text) {
  const auto slash = text.rfind("/s");
  if (slash == std::string_view::npos || slash + 2 != text.size())
    return Error{
        ErrorCode::invalid_input,
        fmt::format("\"{}\" is not a rate: it does not end in \"/s\"; write it like \"12 GB/s\"",
                    text)};
  return parse_quantity(text.substr(0, slash), byte_units, "rate", "12 GB/s");
}

}  // namespace troupe
