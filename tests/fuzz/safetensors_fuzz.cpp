/// Any bytes as a safetensors file: an error, or tensors that cover its data without gap or
/// overlap.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "actors/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto length = troupe::header_length(bytes, size, "fuzz");
  if (!length.ok()) return 0;
  const auto header = troupe::parse_header(text.substr(8, *length), size, "fuzz");
  if (!header.ok()) {
    if (header.error().text.empty()) std::abort();
    return 0;
  }
  std::uint64_t end = 0;
  for (const auto& tensor : header->tensors) {
    if (tensor.begin != end || tensor.end < tensor.begin) std::abort();
    end = tensor.end;
  }
  if (header->data_start + end != size) std::abort();
  return 0;
}
