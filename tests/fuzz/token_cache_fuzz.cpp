/// Any bytes as a token cache, as they are and with head, count and checksum set right: an error,
/// or tokens that are all at most the largest id. The first byte chooses two or four bytes a token.
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/data/token_cache.h"
#include "tests/support/temporary_folder.h"

namespace {

constexpr std::size_t head_bytes = 48;
constexpr std::size_t tail_bytes = 32;

std::string little_endian(std::uint64_t value, std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

/// The head of a cache with `width` bytes a token; what it was made from is all zero.
std::string head_of(std::uint64_t width) {
  return "TROUPETK" + little_endian(1, 4) + little_endian(width, 4) + std::string(32, '\0');
}

void check(const std::filesystem::path& path, std::string_view content, std::string_view head) {
  troupe::set_content(path, content);
  const auto file = troupe::open_token_cache(path, std::as_bytes(std::span(head)));
  if (!file.ok()) {
    if (file.error().text.empty()) std::abort();
    return;
  }
  std::vector<std::int32_t> all(file->size());
  file->copy(0, all);
  for (std::uint64_t i = 0; i < file->size(); ++i) {
    if (all[i] != (*file)[i]) std::abort();
    if (all[i] < 0 || static_cast<std::uint32_t>(all[i]) > file->largest_id()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const troupe::TemporaryFolder folder(troupe::Where::memory);
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::uint64_t width = data[0] % 2 == 0 ? 2 : 4;
  const std::string head = head_of(width);
  check(folder / "cache", text, head);
  if (text.size() < head_bytes + tail_bytes) return 0;
  // The same tokens and largest id under the right head, count and checksum.
  const std::string_view tokens =
      text.substr(head_bytes, (text.size() - head_bytes - tail_bytes) / width * width);
  std::string sealed = head;
  sealed += tokens;
  sealed += little_endian(tokens.size() / width, 8);
  sealed += text.substr(text.size() - tail_bytes + 8, 8);
  const XXH128_hash_t hash = XXH3_128bits(sealed.data(), sealed.size());
  sealed += little_endian(hash.low64, 8) + little_endian(hash.high64, 8);
  check(folder / "cache", sealed, head);
  return 0;
}
