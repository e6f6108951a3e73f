/// L144 Any bytes as the header of a link's frame, as they are and with the checksum set right: an
/// error, or a frame within its tensor that survives writing and reading. The first two bytes are
/// the payload's length.
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "devices/link_frame.h"

namespace {

void check(std::span<const std::byte> header, std::size_t payload_bytes) {
  const auto frame = troupe::decode(header, payload_bytes);
  if (!frame.ok()) {
    if (frame.error().text.empty()) std::abort();
    return;
  }
  if (frame->payload_bytes != payload_bytes) std::abort();
  if (frame->payload_bytes > troupe::frame_payload_limit) std::abort();
  const bool data = frame->kind == troupe::FrameKind::data;
  if (!data && payload_bytes != 0) std::abort();
  if (data && (frame->offset > frame->total || payload_bytes > frame->total - frame->offset))
    std::abort();
  // As bytes: a time may be a NaN.
  const troupe::FrameBytes once = troupe::encode(*frame);
  const auto again = troupe::decode(once, payload_bytes);
  if (!again.ok() || troupe::encode(*again) != once) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::size_t payload = data[0] + 256U * data[1];
  const auto header = std::as_bytes(std::span(data + 2, size - 2));
  check(header, payload);
  std::vector<std::byte> sealed(troupe::frame_header_bytes);
  std::copy_n(header.begin(), std::min(header.size(), sealed.size()), sealed.begin());
  std::memcpy(sealed.data(), &troupe::frame_magic, sizeof troupe::frame_magic);
  const std::uint64_t checksum = XXH3_64bits(sealed.data(), sealed.size() - sizeof checksum);
  std::memcpy(sealed.data() + sealed.size() - sizeof checksum, &checksum, sizeof checksum);
  check(sealed, payload);
  return 0;
}
