#include "planner/printable.h"

#include <fmt/format.h>

namespace troupe {

std::string printable(std::string_view name) {
  constexpr std::size_t longest = 80;
  std::string out;
  for (const char c : name.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '"' || c == '\\')
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  if (name.size() > longest) out += "...";
  return out;
}

std::string layers_text(const LayerRange& layers) {
  return layers.size() == 1 ? fmt::format("{}", layers.first)
                            : fmt::format("{}-{}", layers.first, layers.last - 1);
}

}  // namespace troupe
