/// Tensors between processes over ZeroMQ. One object per process owns every socket, in one thread:
/// a ROUTER that others send to and a DEALER to each peer. Frames carry at most 1 MiB behind a
/// checked header; a receiver grants the buffer that a tensor's frames are copied straight into,
/// and acknowledges the whole.
///
/// A tensor of which a frame came damaged or not at all is sent again from its start, and a grant
/// that brought nothing is repeated: the bytes at the sender stay until the acknowledgement. After
/// `resend_limit` times the transfer is given up. That, a lost peer and a wrong length are reported
/// to the devices of this process; frames of another run or epoch, without a grant or malformed
/// are refused and counted. Loopback addresses only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "devices/link.h"

namespace troupe {

/// Another process and the devices that it holds.
struct LinkPeer {
  std::uint32_t process = 0;
  std::string name;  ///< for errors
  std::string host;
  std::uint16_t port = 0;
  std::vector<DeviceId> devices;
};

struct FrameHeader;

/// What a test lets happen to a frame that is about to be sent.
enum class LinkFault : std::uint8_t { none, damage, drop };

struct ZmqLinkOptions {
  /// A number that both ends were told, another for each run: whatever else knows a port that this
  /// run was given, or had it before, is not listened to.
  std::uint64_t run = 0;
  std::uint32_t resend_limit = 3;
  /// A tensor without an acknowledgement, beyond what the link's own time is, for so long is sent
  /// again; each time the patience doubles. The same for grants that bring nothing.
  Seconds patience = 1;
  /// For tests: asked for each frame, on the link's thread.
  std::function<LinkFault(const FrameHeader&)> faults;
};

/// True for 127.x.x.x, ::1 and "localhost".
bool is_loopback(const std::string& host);

class ZmqLink final : public RemoteLink {
 public:
  /// Binds to a free port of `host`. `process` numbers this process. `hub` must outlive this; it
  /// gets the events. Error invalid_input: not a loopback address.
  static Result<std::unique_ptr<ZmqLink>> open(LinkHub& hub,
                                               std::uint32_t process,
                                               const std::string& host,
                                               ZmqLinkOptions options = {});
  /// Stops the thread and closes the sockets without waiting for what is queued. No buffer that was
  /// sent or granted is touched after this.
  ~ZmqLink() override;

  std::uint16_t port() const;
  /// Connects to all peers and waits until each has answered. `own_name`: of this process, for
  /// errors. Error timeout or peer_lost: names the peer that did not.
  Status connect(const std::vector<LinkPeer>& peers,
                 Seconds timeout,
                 const std::string& own_name = "this process");

  void send(const Transfer& transfer) override;
  void grant(const Grant& grant) override;

 private:
  struct State;
  explicit ZmqLink(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;  ///< shared with deliveries that are held back
};

}  // namespace troupe
