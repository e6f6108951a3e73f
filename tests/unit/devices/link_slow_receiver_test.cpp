// A receiver that does not keep up: what the sender holds for it, and how often it sends.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <zmq.hpp>

#include "devices/link_frame.h"
#include "devices/threads.h"
#include "devices/zmq_link.h"
#include "tests/support/catch.h"

using namespace troupe;

namespace {

constexpr PlanEpoch epoch{5};
constexpr DeviceId d0{0}, d1{1};
constexpr std::uint32_t receiver_process = 1;
const TransferKey key{epoch, 1, {Op::transfer_forward, StageId{0}, MicrobatchId{0}}};

/// The other end of a link, in this process, that reads a frame only when it is told to: its queue
/// and its socket's buffer are as small as they can be.
class SlowReceiver {
 public:
  SlowReceiver() : router_(context_, zmq::socket_type::router) {
    router_.set(zmq::sockopt::linger, 0);
    router_.set(zmq::sockopt::rcvhwm, 1);
    router_.set(zmq::sockopt::rcvbuf, 64 * 1024);
    router_.set(zmq::sockopt::rcvtimeo, 20000);
    router_.bind("tcp://127.0.0.1:*");
    const std::string endpoint = router_.get(zmq::sockopt::last_endpoint);
    port = static_cast<std::uint16_t>(std::stoul(endpoint.substr(endpoint.rfind(':') + 1)));
  }
  /// Hello and welcome, both ways.
  void meet(std::uint16_t sender_port) {
    dealer_ = zmq::socket_t(context_, zmq::socket_type::dealer);
    dealer_.set(zmq::sockopt::linger, 0);
    dealer_.connect("tcp://127.0.0.1:" + std::to_string(sender_port));
    send(FrameKind::hello);
    (void)read(FrameKind::hello);
    send(FrameKind::welcome);
    (void)read(FrameKind::welcome);
  }
  void send(FrameKind kind, FrameHeader header = {}) {
    header.kind = kind;
    header.process = receiver_process;
    header.payload_bytes = 0;
    header.key = key;
    const FrameBytes bytes = encode(header);
    (void)dealer_.send(zmq::buffer(bytes.data(), bytes.size()));
  }
  /// Has a frame come?
  bool waits() {
    zmq::pollitem_t item{router_.handle(), 0, ZMQ_POLLIN, 0};
    return zmq::poll(&item, 1, std::chrono::milliseconds{20000}) > 0;
  }
  /// The next frame of a kind; its payload is in `payload`.
  FrameHeader read(FrameKind kind) {
    while (true) {
      zmq::message_t identity, head;
      payload.rebuild();
      if (!router_.recv(identity) || !router_.recv(head))
        throw std::runtime_error("no frame came within 20 s");
      if (head.more()) (void)router_.recv(payload);
      const auto frame =
          decode({static_cast<const std::byte*>(head.data()), head.size()}, payload.size());
      if (!frame) throw std::runtime_error(frame.error().text);
      if (frame->kind == kind) return *frame;
    }
  }

  std::uint16_t port = 0;
  zmq::message_t payload;

 private:
  zmq::context_t context_{1};
  zmq::socket_t router_, dealer_;
};

Bytes resident_bytes() {
  Bytes pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<Bytes>(sysconf(_SC_PAGESIZE));
}

/// A link that has met a slow receiver, and the tensor that it shall send.
struct SlowPair {
  // More than 64 frames and what the system's socket buffers may hold together.
  static constexpr Bytes size = 64_MiB;
  std::vector<std::byte> tensor = std::vector<std::byte>(size);
  std::atomic<bool> delivered{false}, lost{false};
  SlowReceiver receiver;
  LinkHub hub{cluster(), false};
  std::unique_ptr<ZmqLink> link;

  explicit SlowPair(const ZmqLinkOptions& options) {
    for (Bytes at = 0; at < size; at += 4096)  // every page, each with a content of its own
      std::memcpy(tensor.data() + at, &at, sizeof at);
    hub.set_epoch(epoch);
    hub.attach(d0, [this](const LinkEvent& event) {
      if (event.kind == LinkEvent::Kind::delivered) delivered = true;
      if (event.kind == LinkEvent::Kind::lost) lost = true;
    });
    auto opened = ZmqLink::open(hub, 0, "127.0.0.1", options);
    REQUIRE(opened.ok());
    link = std::move(*opened);
    hub.set_remote(link.get());
    Status connected;
    std::thread connecting([&] {
      connected = link->connect({{receiver_process, "slow", "127.0.0.1", receiver.port, {d1}}}, 20);
    });
    std::string failure;
    try {
      receiver.meet(link->port());
    } catch (const std::exception& thrown) {
      failure = thrown.what();
    }
    connecting.join();
    REQUIRE(failure.empty());
    REQUIRE(connected.ok());
  }
  ~SlowPair() {
    hub.set_remote(nullptr);
    link.reset();
    hub.detach(d0);
  }
  static ClusterSpec cluster() {
    ClusterSpec spec;
    spec.nodes = {{"n0", false}, {"n1", true}};
    spec.devices.resize(2);
    spec.devices[1].node = NodeId{1};
    return spec;
  }
  void begin() {
    hub.send({key, d0, d1, tensor.data(), size, false});
    FrameHeader grant;
    grant.from = d0;
    grant.to = d1;
    grant.total = size;
    receiver.send(FrameKind::grant, grant);
  }
  bool done() const { return delivered || lost; }
  /// The frame that was read last has the tensor's bytes.
  bool is_true(const FrameHeader& frame) const {
    return frame.total == size && std::memcmp(receiver.payload.data(), tensor.data() + frame.offset,
                                              receiver.payload.size()) == 0;
  }
  static bool is_last(const FrameHeader& frame) {
    return frame.offset + frame.payload_bytes == frame.total;
  }
  void acknowledge(const FrameHeader& last) {
    receiver.send(FrameKind::ack, last);
    const Seconds until = monotonic_seconds() + 0.1;
    while (!done() && monotonic_seconds() < until) std::this_thread::yield();
  }
};

}  // namespace

TEST_CASE("L122 a receiver that does not read holds the sender back; the sender keeps no copy") {
  constexpr Bytes most_growth = 16_MiB;
  ZmqLinkOptions options;
  options.patience = 0.25;  // from when the last frame has left the link's own queue
  SlowPair pair(options);
  const Bytes before = resident_bytes();
  pair.begin();
  REQUIRE(pair.receiver.waits());
  Bytes most = before;
  const Seconds until = monotonic_seconds() + 0.6;
  while (monotonic_seconds() < until) {
    most = std::max(most, resident_bytes());
    (void)::poll(nullptr, 0, 5);  // nothing to wait for: it must stay as it is
  }
  INFO("grown by " << (most - before) / 1024 << " KiB");
  CHECK(most - before < most_growth);
  // Had every frame been taken from the link's queue, the tensor would be overdue and sent again.
  CHECK(pair.hub.counters().resent == 0);
  CHECK_FALSE(pair.delivered);

  // Slow is not lost: all of it comes, in order and whole.
  bool whole = true;
  Bytes next = 0;
  while (!pair.done()) {
    const FrameHeader frame = pair.receiver.read(FrameKind::data);
    if (frame.offset == 0) next = 0;  // the patience is short: it may be sent again at the end
    whole = whole && frame.offset == next && pair.is_true(frame);
    next = frame.offset + frame.payload_bytes;
    if (SlowPair::is_last(frame)) pair.acknowledge(frame);
  }
  CHECK(whole);
  CHECK_FALSE(pair.lost);
}

TEST_CASE("L122 a tensor that arrives after the sender lost patience is not sent whole again") {
  ZmqLinkOptions options;
  options.patience = 0.1;
  options.resend_limit = 10;
  SlowPair pair(options);
  pair.begin();
  FrameHeader last;
  while (!SlowPair::is_last(last) || last.total == 0) {
    last = pair.receiver.read(FrameKind::data);
    REQUIRE(last.attempt == 0);
    REQUIRE(pair.is_true(last));
  }
  // Silence, until the sender begins anew; then the acknowledgement after all.
  FrameHeader frame = pair.receiver.read(FrameKind::data);
  CHECK(frame.attempt == 1);
  pair.acknowledge(last);
  Bytes again = frame.payload_bytes;
  while (!pair.done()) {
    frame = pair.receiver.read(FrameKind::data);
    again += frame.payload_bytes;
    REQUIRE(again <= 2 * SlowPair::size);
    if (SlowPair::is_last(frame)) pair.acknowledge(frame);
  }
  CHECK(pair.delivered);
  INFO("sent again: " << again / 1024 << " KiB");
  CHECK(again < 48_MiB);
}
