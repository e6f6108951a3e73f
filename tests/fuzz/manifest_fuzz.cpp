/// Any bytes as a manifest, as they are and with the checksum set right: an error, or a manifest
/// whose text is the input.
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "actors/checkpoint/manifest.h"
#include "actors/data/strict_json.h"

namespace {

void check(std::string_view text) {
  const auto manifest = troupe::parse_manifest(text, "fuzz");
  if (!manifest.ok()) {
    if (manifest.error().text.empty()) std::abort();
    return;
  }
  if (troupe::manifest_text(*manifest) != text) std::abort();
  for (const auto& shard : manifest->files)
    if (!troupe::is_plain_name(shard.file.name)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(text);
  auto json = troupe::parse_json(text, "fuzz");
  if (!json.ok() || !json->is_object()) return 0;
  json->erase("checksum");
  const std::string body = json->dump(1);
  (*json)["checksum"] = troupe::to_hex(XXH3_128bits(body.data(), body.size()));
  check(json->dump(1) + "\n");
  return 0;
}
