#include "devices/link_frame.h"

#include <fmt/format.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>  // the same sums in the widest registers that there are
#else
#include <xxhash.h>
#endif

#include <bit>
#include <cstring>
#include <type_traits>

namespace troupe {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are little endian");

constexpr std::size_t checksum_offset = frame_header_bytes - 8;

/// Writes fields one after another.
class Writer {
 public:
  explicit Writer(FrameBytes& out) : out_(out) {}
  template <class T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    EXPECTS(at_ + sizeof value <= checksum_offset);
    std::memcpy(out_.data() + at_, &value, sizeof value);
    at_ += sizeof value;
  }

 private:
  FrameBytes& out_;
  std::size_t at_ = 0;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}
  template <class T>
  T take() {
    T value;
    EXPECTS(at_ + sizeof value <= in_.size());
    std::memcpy(&value, in_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

 private:
  std::span<const std::byte> in_;
  std::size_t at_ = 0;
};

Error refuse(std::string why) {
  return {ErrorCode::protocol, "link frame: " + std::move(why)};
}

}  // namespace

std::uint64_t payload_checksum(std::span<const std::byte> payload) {
  return XXH3_64bits(payload.data(), payload.size());
}

FrameBytes encode(const FrameHeader& header) {
  FrameBytes bytes{};
  Writer out(bytes);
  out.put(frame_magic);
  out.put(frame_version);
  out.put(header.kind);
  out.put(header.key.action.op);
  out.put(header.process);
  out.put(header.key.action.stage.value);
  out.put(header.key.action.microbatch.value);
  out.put(header.from.value);
  out.put(header.to.value);
  out.put(header.payload_bytes);
  out.put(header.attempt);
  out.put(header.run);
  out.put(header.key.epoch.value);
  out.put(header.key.step);
  out.put(header.offset);
  out.put(header.total);
  out.put(header.payload_checksum);
  out.put(std::bit_cast<std::uint64_t>(header.begin));
  out.put(std::bit_cast<std::uint64_t>(header.end));
  const std::uint64_t checksum = XXH3_64bits(bytes.data(), checksum_offset);
  std::memcpy(bytes.data() + checksum_offset, &checksum, sizeof checksum);
  return bytes;
}

Result<FrameHeader> decode(std::span<const std::byte> header, std::size_t payload_bytes) {
  if (header.size() != frame_header_bytes)
    return refuse(
        fmt::format("a header has {} bytes, this one {}", frame_header_bytes, header.size()));
  Reader in(header);
  if (in.take<std::uint32_t>() != frame_magic) return refuse("it is not one of ours");
  const auto version = in.take<std::uint16_t>();
  if (version != frame_version)
    return refuse(fmt::format("version {}, this program speaks {}", version, frame_version));
  std::uint64_t checksum = 0;
  std::memcpy(&checksum, header.data() + checksum_offset, sizeof checksum);
  if (checksum != XXH3_64bits(header.data(), checksum_offset))
    return refuse("the header is damaged");
  FrameHeader frame;
  const auto kind = in.take<std::uint8_t>();
  const auto op = in.take<std::uint8_t>();
  if (kind < static_cast<std::uint8_t>(FrameKind::hello) ||
      kind > static_cast<std::uint8_t>(FrameKind::failed))
    return refuse(fmt::format("kind {} is unknown", kind));
  if (op > static_cast<std::uint8_t>(Op::update))
    return refuse(fmt::format("op {} is unknown", op));
  frame.kind = static_cast<FrameKind>(kind);
  frame.key.action.op = static_cast<Op>(op);
  frame.process = in.take<std::uint32_t>();
  frame.key.action.stage.value = in.take<std::uint32_t>();
  frame.key.action.microbatch.value = in.take<std::uint32_t>();
  frame.from.value = in.take<std::uint32_t>();
  frame.to.value = in.take<std::uint32_t>();
  frame.payload_bytes = in.take<std::uint32_t>();
  frame.attempt = in.take<std::uint32_t>();
  frame.run = in.take<std::uint64_t>();
  frame.key.epoch.value = in.take<std::uint64_t>();
  frame.key.step = in.take<std::uint64_t>();
  frame.offset = in.take<std::uint64_t>();
  frame.total = in.take<std::uint64_t>();
  frame.payload_checksum = in.take<std::uint64_t>();
  frame.begin = std::bit_cast<double>(in.take<std::uint64_t>());
  frame.end = std::bit_cast<double>(in.take<std::uint64_t>());
  if (frame.payload_bytes != payload_bytes || frame.payload_bytes > frame_payload_limit)
    return refuse(fmt::format("{} bytes follow where {} were announced; the most is {}",
                              payload_bytes, frame.payload_bytes, frame_payload_limit));
  if (frame.kind != FrameKind::data) {
    if (frame.payload_bytes != 0) return refuse("only data carries bytes");
    return frame;
  }
  if (frame.offset > frame.total || frame.payload_bytes > frame.total - frame.offset)
    return refuse(fmt::format("{} bytes from {} on lie outside of a tensor of {}",
                              frame.payload_bytes, frame.offset, frame.total));
  return frame;
}

}  // namespace troupe
