/// "1 layer", "2 layers": counts in texts for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe {

/// The noun's plural has an s more, or es after ch.
inline std::string counted(std::uint64_t count, std::string_view noun) {
  const bool hisses = noun.size() > 2 && noun.substr(noun.size() - 2) == "ch";
  return std::to_string(count) + " " + std::string(noun) +
         (count == 1 ? "" : (hisses ? "es" : "s"));
}

}  // namespace troupe
