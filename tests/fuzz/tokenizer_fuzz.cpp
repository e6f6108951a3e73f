/// encoder.json, vocab.bpe and a text, with a zero byte between: errors, or a tokenizer under which
/// the text survives encoding and decoding.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "actors/data/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto next = [&] {
    const auto end = input.find('\0');
    const auto part = input.substr(0, end);
    input = end == std::string_view::npos ? std::string_view{} : input.substr(end + 1);
    return part;
  };
  const auto encoder = next();
  const auto vocab = next();
  const auto made = troupe::make_gpt2_tokenizer(encoder, "encoder.json", vocab, "vocab.bpe");
  if (!made.ok()) {
    if (made.error().text.empty()) std::abort();
    return 0;
  }
  const auto ids = (*made)->encode(input);
  for (const auto id : ids)
    if (id < 0 || static_cast<std::uint32_t>(id) >= (*made)->vocabulary()) std::abort();
  const auto text = (*made)->decode(ids);
  if (!text.ok() || *text != input) std::abort();
  return 0;
}
