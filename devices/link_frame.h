/// Frames of a link between processes: a header of fixed size, then at most 1 MiB of a tensor. What
/// comes from a socket is checked here before any number of it is used.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "devices/link.h"

namespace troupe {

inline constexpr std::uint32_t frame_magic = 0x4c505254;  // "TRPL"
inline constexpr std::uint16_t frame_version = 3;
inline constexpr Bytes frame_payload_limit = 1_MiB;  ///< that a receiver takes
/// What a sender puts into one frame. A frame that fits a core's cache is still there when it is
/// compared and copied, and the first bytes of a tensor are on their way while the rest is read.
inline constexpr Bytes frame_payload_bytes = 256_KiB;

enum class FrameKind : std::uint8_t {
  hello = 1,  ///< the first word to a peer
  welcome,    ///< the answer to a hello
  grant,      ///< receiver to sender: there is a buffer of `total` bytes for `key`
  data,       ///< bytes [offset, offset + payload) of `key`, whose size is `total`
  ack,        ///< receiver to sender: all of `key` arrived, from `begin` to `end`
  again,      ///< receiver to sender: attempt `attempt` of `key` came damaged or with a gap
  failed      ///< receiver to sender: `key` was given up
};

struct FrameHeader {
  FrameKind kind = FrameKind::hello;
  std::uint32_t process = 0;  ///< of the frame's sender
  TransferKey key;
  DeviceId from, to;  ///< of the tensor
  Bytes offset = 0;
  Bytes total = 0;
  std::uint32_t payload_bytes = 0;
  std::uint32_t attempt = 0;  ///< of sending `key`: frames of an earlier one are passed over
  std::uint64_t run = 0;      ///< ZmqLinkOptions::run of the sender
  std::uint64_t payload_checksum = 0;  ///< XXH3 of the payload
  Seconds begin = 0, end = 0;          ///< monotonic clock of the machine
  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

inline constexpr std::size_t frame_header_bytes = 112;
using FrameBytes = std::array<std::byte, frame_header_bytes>;

FrameBytes encode(const FrameHeader& header);

/// Refuses (protocol): wrong size, magic, version, kind, op or header checksum; a payload of
/// another length than announced or over the limit; offset + payload beyond total. The payload
/// itself is compared by `payload_checksum`.
Result<FrameHeader> decode(std::span<const std::byte> header, std::size_t payload_bytes);

std::uint64_t payload_checksum(std::span<const std::byte> payload);

}  // namespace troupe
