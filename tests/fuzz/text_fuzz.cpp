/// Any bytes as text and as JSON lines: pieces join to the text, a safe cut changes none of them.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "actors/data/pretokenizer.h"
#include "actors/data/text_source.h"

namespace {

void split(std::string_view text, std::vector<std::string_view>& pieces) {
  while (!text.empty()) {
    const std::size_t size = troupe::first_piece_bytes(text);
    if (size == 0 || size > text.size()) std::abort();
    pieces.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<std::string_view> whole, halves;
  split(text, whole);
  const std::size_t cut = troupe::safe_cut(text, size / 2);
  split(text.substr(0, cut), halves);
  split(text.substr(cut), halves);
  if (whole != halves) std::abort();
  const auto read = troupe::read_jsonl(text, "fuzz", "text",
                                       [](std::string_view, bool) { return troupe::Status(); });
  if (!read.ok() && read.error().text.empty()) std::abort();
  return 0;
}
