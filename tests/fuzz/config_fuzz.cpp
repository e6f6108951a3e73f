/// Any bytes as a configuration give values or placed problems; values read back from their text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "apps/run_config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  troupe::ConfigOptions options;
  options.look_at_files = false;
  // What stands after a zero byte is an override.
  const auto zero = text.find('\0');
  if (zero != std::string_view::npos) options.overrides.emplace_back(text.substr(zero + 1));
  const auto outcome = troupe::parse_config(text.substr(0, zero), "fuzz.toml", options);
  if (outcome.loaded.has_value() == !outcome.problems.empty()) std::abort();
  if (!outcome.loaded) return 0;
  options.overrides.clear();
  const auto again = troupe::parse_config(outcome.loaded->resolved, "fuzz.toml", options);
  if (!again.loaded || again.loaded->resolved != outcome.loaded->resolved) std::abort();
  return 0;
}
