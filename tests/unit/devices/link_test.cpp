// Links: credits, references and copies, held-back delivery; frames; the same over ZeroMQ.
#include "devices/link.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <numeric>
#include <vector>

#include <zmq.hpp>

#include "devices/link_frame.h"
#include "devices/threads.h"
#include "devices/zmq_link.h"
#include "tests/support/catch.h"

using namespace troupe;

namespace {

ClusterSpec two_devices(bool two_processes) {
  ClusterSpec cluster;
  cluster.nodes = {{"n0", false}, {"n1", two_processes}};
  cluster.devices.resize(2);
  cluster.devices[1].node = NodeId{1};
  return cluster;
}

constexpr PlanEpoch epoch{5};
constexpr DeviceId d0{0}, d1{1};

TransferKey key_of(std::uint32_t microbatch, Op op = Op::transfer_forward, PlanEpoch of = epoch) {
  return {of, 1, {op, StageId{0}, MicrobatchId{microbatch}}};
}

/// Events of one device, with a deadline on waiting.
class Inbox {
 public:
  LinkSink sink() {
    return [state = state_](LinkEvent event) {
      const std::lock_guard lock(state->mutex);
      state->events.push_back(std::move(event));
      state->came.notify_all();
    };
  }
  /// The first event of a kind that was not taken yet.
  LinkEvent wait_for(LinkEvent::Kind kind) {
    std::vector<LinkEvent>& events = state_->events;
    std::unique_lock lock(state_->mutex);
    std::size_t at = 0;
    const bool found = state_->came.wait_for(lock, std::chrono::seconds{20}, [&] {
      for (at = 0; at < events.size(); ++at)
        if (events[at].kind == kind) return true;
      return false;
    });
    if (!found) FAIL("no event of kind " << static_cast<int>(kind) << " within 20 s");
    LinkEvent event = events[at];
    events.erase(events.begin() + static_cast<std::ptrdiff_t>(at));
    return event;
  }
  std::size_t size() {
    const std::lock_guard lock(state_->mutex);
    return state_->events.size();
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable came;
    std::vector<LinkEvent> events;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();  // sinks may outlive the inbox
};

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    data[i] = static_cast<std::byte>((i * 131 + seed * 17 + i / 251) & 0xff);
  return data;
}

/// Two processes' ends of a link, in one process.
struct ZmqPair {
  LinkHub hub0, hub1;
  Inbox inbox0, inbox1;
  std::unique_ptr<ZmqLink> link0, link1;

  explicit ZmqPair(const ClusterSpec& cluster = two_devices(true),
                   const ZmqLinkOptions& options0 = {},
                   const ZmqLinkOptions& options1 = {})
      : hub0(cluster, false), hub1(cluster, false) {
    hub0.set_epoch(epoch);
    hub1.set_epoch(epoch);
    hub0.attach(d0, inbox0.sink());
    hub1.attach(d1, inbox1.sink());
    auto a = ZmqLink::open(hub0, 0, "127.0.0.1", options0);
    auto b = ZmqLink::open(hub1, 1, "127.0.0.1", options1);
    REQUIRE(a.ok());
    REQUIRE(b.ok());
    link0 = std::move(*a);
    link1 = std::move(*b);
    hub0.set_remote(link0.get());
    hub1.set_remote(link1.get());
    std::thread other([&] {
      other_connected = link1->connect({{0, "p0", "127.0.0.1", link0->port(), {d0}}}, 20, "p1");
    });
    const Status connected =
        link0->connect({{1, "p1", "127.0.0.1", link1->port(), {d1}}}, 20, "p0");
    other.join();
    REQUIRE(connected.ok());
    REQUIRE(other_connected.ok());
  }
  Status other_connected;
};

/// A stranger's frame, straight at a link's port.
void throw_at(std::uint16_t port, const std::vector<std::string>& parts) {
  zmq::context_t context;
  zmq::socket_t dealer(context, zmq::socket_type::dealer);
  dealer.set(zmq::sockopt::linger, 2000);
  dealer.connect("tcp://127.0.0.1:" + std::to_string(port));
  for (std::size_t i = 0; i < parts.size(); ++i)
    dealer.send(zmq::buffer(parts[i]),
                i + 1 < parts.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
}

template <class Condition>
bool soon(Condition condition) {
  const Seconds until = monotonic_seconds() + 20;
  while (!condition()) {
    if (monotonic_seconds() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

std::string text_of(const FrameBytes& bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace

TEST_CASE("within a process a tensor travels by reference once there is a grant") {
  LinkHub hub(two_devices(false), false);
  Inbox sender, receiver;
  hub.set_epoch(epoch);
  hub.attach(d0, sender.sink());
  hub.attach(d1, receiver.sink());
  auto data = pattern(1000, 1);
  hub.send({key_of(0), d0, d1, data.data(), data.size(), false});
  CHECK(receiver.size() == 0);  // no room yet
  hub.grant({key_of(0), d0, d1, nullptr, 0});
  CHECK(sender.wait_for(LinkEvent::Kind::granted).key == key_of(0));
  const LinkEvent arrived = receiver.wait_for(LinkEvent::Kind::arrived);
  CHECK(arrived.data == data.data());
  CHECK(sender.wait_for(LinkEvent::Kind::delivered).key == key_of(0));
  hub.detach(d0);
  hub.detach(d1);
}

TEST_CASE("copies go into the granted buffer, and never beyond it") {
  LinkHub hub(two_devices(false), true);
  Inbox sender, receiver;
  hub.set_epoch(epoch);
  hub.attach(d0, sender.sink());
  hub.attach(d1, receiver.sink());
  auto data = pattern(1000, 2);
  std::vector<std::byte> buffer(1000), small(999);
  hub.grant({key_of(1), d0, d1, buffer.data(), buffer.size()});
  hub.send({key_of(1), d0, d1, data.data(), data.size(), false});
  CHECK(receiver.wait_for(LinkEvent::Kind::arrived).data == buffer.data());
  CHECK(buffer == data);
  hub.grant({key_of(2), d0, d1, small.data(), small.size()});
  hub.send({key_of(2), d0, d1, data.data(), data.size(), false});
  CHECK(receiver.wait_for(LinkEvent::Kind::lost).error.code == ErrorCode::protocol);
  hub.detach(d0);
  hub.detach(d1);
}

TEST_CASE("a delivery is held back until latency and bandwidth have passed") {
  ClusterSpec cluster = two_devices(false);
  cluster.same_process = {0.01, 1e5};
  LinkHub hub(cluster, false);
  Inbox sender, receiver;
  hub.set_epoch(epoch);
  hub.attach(d0, sender.sink());
  hub.attach(d1, receiver.sink());
  auto data = pattern(2000, 3);
  hub.grant({key_of(0), d0, d1, nullptr, 0});
  hub.send({key_of(0), d0, d1, data.data(), data.size(), false});
  const LinkEvent arrived = receiver.wait_for(LinkEvent::Kind::arrived);
  CHECK(arrived.end - arrived.begin >= 0.03);  // 10 ms + 2000 B at 100 kB/s
  hub.detach(d0);
  hub.detach(d1);
}

TEST_CASE("another epoch is refused and counted") {
  LinkHub hub(two_devices(false), false);
  Inbox sender, receiver;
  hub.set_epoch(epoch);
  hub.attach(d0, sender.sink());
  hub.attach(d1, receiver.sink());
  const TransferKey old = key_of(0, Op::transfer_forward, PlanEpoch{4});
  std::byte byte{};
  hub.grant({old, d0, d1, nullptr, 0});
  hub.send({old, d0, d1, &byte, 1, false});
  CHECK(hub.counters().stale_epoch == 2);
  CHECK(sender.size() + receiver.size() == 0);
  hub.detach(d0);
  hub.detach(d1);
}

TEST_CASE("frames come back as they were; damage, lies and strangers are refused") {
  FrameHeader frame;
  frame.kind = FrameKind::data;
  frame.process = 3;
  frame.run = 0x123456789abcdef0ULL;
  frame.key = key_of(9, Op::transfer_backward);
  frame.from = d1;
  frame.to = d0;
  frame.offset = 1_MiB;
  frame.total = 3_MiB;
  frame.payload_bytes = 777;
  frame.payload_checksum = 42;
  frame.begin = 1.0 / 3;
  const FrameBytes bytes = encode(frame);
  const auto back = decode(bytes, 777);
  REQUIRE(back.ok());
  CHECK(*back == frame);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {  // every single flipped bit
    FrameBytes damaged = bytes;
    damaged[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    CHECK_FALSE(decode(damaged, 777).ok());
  }
  CHECK_FALSE(decode(std::span(bytes).first(100), 777).ok());
  CHECK_FALSE(decode(bytes, 776).ok());
  frame.offset = 3_MiB - 700;
  CHECK_FALSE(decode(encode(frame), 777).ok());
  frame.offset = ~Bytes{0} - 5;  // offset + payload would wrap
  CHECK_FALSE(decode(encode(frame), 777).ok());
  frame.offset = 0;
  frame.payload_bytes = static_cast<std::uint32_t>(frame_payload_limit + 1);
  CHECK_FALSE(decode(encode(frame), frame_payload_limit + 1).ok());
  frame.kind = FrameKind::grant;
  frame.payload_bytes = 1;
  CHECK_FALSE(decode(encode(frame), 1).ok());
}

TEST_CASE("between processes tensors of any size arrive in the granted buffer") {
  ZmqPair pair;
  std::uint32_t m = 0;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{1} << 20, (std::size_t{5} << 20) + 12345}) {
    CAPTURE(bytes);
    auto data = pattern(bytes, m);
    std::vector<std::byte> buffer(bytes + 1, std::byte{0x5a});
    const TransferKey key = key_of(m++);
    if (m % 2 == 0) pair.hub1.grant({key, d0, d1, buffer.data(), bytes});
    pair.hub0.send({key, d0, d1, data.data(), data.size(), false});
    if (m % 2 == 1) pair.hub1.grant({key, d0, d1, buffer.data(), bytes});
    CHECK(pair.inbox0.wait_for(LinkEvent::Kind::granted).key == key);
    CHECK(pair.inbox1.wait_for(LinkEvent::Kind::arrived).data == buffer.data());
    CHECK(pair.inbox0.wait_for(LinkEvent::Kind::delivered).key == key);
    CHECK(std::equal(data.begin(), data.end(), buffer.begin()));
    CHECK(buffer.back() == std::byte{0x5a});
  }
}

TEST_CASE("between processes a slow link holds back as well") {
  ClusterSpec cluster = two_devices(true);
  cluster.between_processes = {0.02, 1e6};
  ZmqPair pair(cluster);
  auto data = pattern(10000, 1);
  std::vector<std::byte> buffer(10000);
  pair.hub1.grant({key_of(0), d0, d1, buffer.data(), buffer.size()});
  pair.hub0.send({key_of(0), d0, d1, data.data(), data.size(), false});
  const LinkEvent arrived = pair.inbox1.wait_for(LinkEvent::Kind::arrived);
  (void)pair.inbox0.wait_for(LinkEvent::Kind::delivered);  // until then the bytes are the link's
  CHECK(arrived.end - arrived.begin >= 0.03);
}

TEST_CASE("R07 stale, ungranted and malformed frames from a socket are refused and counted") {
  ZmqPair pair;
  const std::uint16_t port = pair.link1->port();
  FrameHeader frame;
  frame.kind = FrameKind::data;
  frame.key = key_of(0, Op::transfer_forward, PlanEpoch{4});
  frame.total = 3;
  frame.payload_bytes = 3;
  const std::string payload = "abc";
  frame.payload_checksum =
      payload_checksum({reinterpret_cast<const std::byte*>(payload.data()), payload.size()});
  throw_at(port, {text_of(encode(frame)), payload});
  CHECK(soon([&] { return pair.hub1.counters().stale_epoch == 1; }));
  frame.key.epoch = epoch;
  throw_at(port, {text_of(encode(frame)), payload});
  CHECK(soon([&] { return pair.hub1.counters().unexpected == 1; }));
  throw_at(port, {"hello"});
  throw_at(port, {std::string(frame_header_bytes, '\0'), "x", "y", "z"});
  CHECK(soon([&] { return pair.hub1.counters().malformed >= 2; }));
  CHECK(pair.inbox1.size() == 0);
  // The link still works.
  auto data = pattern(100, 1);
  std::vector<std::byte> buffer(100);
  pair.hub1.grant({key_of(1), d0, d1, buffer.data(), buffer.size()});
  pair.hub0.send({key_of(1), d0, d1, data.data(), data.size(), false});
  (void)pair.inbox1.wait_for(LinkEvent::Kind::arrived);
  (void)pair.inbox0.wait_for(LinkEvent::Kind::delivered);
  CHECK(buffer == data);
}

TEST_CASE("a stranger's damaged payload is asked for again, not announced as arrived") {
  ZmqPair pair;
  std::vector<std::byte> buffer(3);
  pair.hub1.grant({key_of(0), d0, d1, buffer.data(), buffer.size()});
  (void)pair.inbox0.wait_for(LinkEvent::Kind::granted);
  FrameHeader frame;
  frame.kind = FrameKind::data;
  frame.key = key_of(0);
  frame.from = d0;
  frame.to = d1;
  frame.total = 3;
  frame.payload_bytes = 3;
  frame.payload_checksum = 1;  // of other bytes
  throw_at(pair.link1->port(), {text_of(encode(frame)), "abc"});
  // The sender that is asked has sent nothing of that name.
  CHECK(soon([&] { return pair.hub0.counters().unexpected == 1; }));
  CHECK(pair.hub1.counters().malformed == 1);
  CHECK(pair.inbox1.size() == 0);
}

TEST_CASE("a tensor of another size than was granted is refused at both ends") {
  ZmqPair pair;
  auto data = pattern(1000, 1);
  std::vector<std::byte> buffer(999);
  pair.hub1.grant({key_of(0), d0, d1, buffer.data(), buffer.size()});
  pair.hub0.send({key_of(0), d0, d1, data.data(), data.size(), false});
  const LinkEvent refused = pair.inbox1.wait_for(LinkEvent::Kind::lost);
  CHECK(refused.error.code == ErrorCode::protocol);
  CHECK(refused.error.text.find("1000 bytes come where there is room for 999") !=
        std::string::npos);
  (void)pair.inbox0.wait_for(LinkEvent::Kind::lost);
}

TEST_CASE("damaged and lost frames of a tensor are sent again until it is whole") {
  const auto fault = GENERATE(LinkFault::damage, LinkFault::drop);
  const std::uint32_t victim = GENERATE(0U, 1U, 2U);  // of three frames
  const std::uint32_t times = GENERATE(1U, 3U);
  CAPTURE(fault == LinkFault::drop, victim, times);
  ZmqLinkOptions faulty;
  faulty.patience = 0.05;
  faulty.faults = [&](const FrameHeader& frame) {
    const bool hit = frame.kind == FrameKind::data && frame.attempt < times &&
                     frame.offset == victim * frame_payload_bytes;
    return hit ? fault : LinkFault::none;
  };
  ZmqPair pair(two_devices(true), faulty);
  auto data = pattern(2 * frame_payload_bytes + 777, times);
  std::vector<std::byte> buffer(data.size());
  pair.hub1.grant({key_of(0), d0, d1, buffer.data(), buffer.size()});
  pair.hub0.send({key_of(0), d0, d1, data.data(), data.size(), false});
  const LinkEvent delivered = pair.inbox0.wait_for(LinkEvent::Kind::delivered);
  CHECK(delivered.resent >= times);  // a slow machine may have run out of patience as well
  CHECK(pair.hub0.counters().resent == delivered.resent);
  CHECK(pair.inbox1.wait_for(LinkEvent::Kind::arrived).data == buffer.data());
  CHECK(buffer == data);
  // The next tensor is no worse for it.
  std::vector<std::byte> next(100);
  pair.hub1.grant({key_of(1), d0, d1, next.data(), next.size()});
  pair.hub0.send({key_of(1), d0, d1, data.data(), next.size(), false});
  CHECK(pair.inbox1.wait_for(LinkEvent::Kind::arrived).key == key_of(1));
  CHECK(pair.inbox0.wait_for(LinkEvent::Kind::delivered).key == key_of(1));
  CHECK(std::memcmp(next.data(), data.data(), next.size()) == 0);
}

TEST_CASE(
    "a tensor that is damaged every time is given up, with both ends and the attempts named") {
  ZmqLinkOptions faulty;
  faulty.faults = [](const FrameHeader& frame) {
    return frame.kind == FrameKind::data ? LinkFault::damage : LinkFault::none;
  };
  ZmqPair pair(two_devices(true), faulty);
  auto data = pattern(3000, 1);
  std::vector<std::byte> buffer(data.size());
  pair.hub1.grant({key_of(2), d0, d1, buffer.data(), buffer.size()});
  pair.hub0.send({key_of(2), d0, d1, data.data(), data.size(), false});
  const LinkEvent receiver = pair.inbox1.wait_for(LinkEvent::Kind::lost);
  const LinkEvent sender = pair.inbox0.wait_for(LinkEvent::Kind::lost);
  const std::string tensor = to_string(key_of(2).action) + " of step 1 from d0 (p0) to d1 (p1)";
  CHECK(receiver.error.code == ErrorCode::corrupt);
  CHECK(receiver.error.text.find(tensor) == 0);
  CHECK(receiver.error.text.find("damaged in each of 4 attempts") != std::string::npos);
  CHECK(sender.error.code == ErrorCode::corrupt);
  CHECK(sender.error.text.find(tensor) == 0);
  CHECK(sender.error.text.find("after 4 attempts") != std::string::npos);
  CHECK(pair.hub0.counters().resent == 3);
  CHECK(pair.inbox1.size() == 0);  // never announced as arrived
}

TEST_CASE("a tensor of which nothing arrives is given up after as many attempts") {
  ZmqLinkOptions deaf;
  deaf.patience = 0.02;
  deaf.faults = [](const FrameHeader& frame) {
    return frame.kind == FrameKind::data ? LinkFault::drop : LinkFault::none;
  };
  ZmqPair pair(two_devices(true), deaf);
  auto data = pattern(3000, 1);
  std::vector<std::byte> buffer(data.size());
  pair.hub1.grant({key_of(0), d0, d1, buffer.data(), buffer.size()});
  pair.hub0.send({key_of(0), d0, d1, data.data(), data.size(), false});
  const LinkEvent sender = pair.inbox0.wait_for(LinkEvent::Kind::lost);
  CHECK(sender.error.code == ErrorCode::timeout);
  CHECK(sender.error.text.find("from d0 (p0) to d1 (p1)") != std::string::npos);
  CHECK(sender.error.text.find("sent 4 times in all") != std::string::npos);
  (void)pair.inbox1.wait_for(LinkEvent::Kind::lost);
}

TEST_CASE("lost grants and acknowledgements are made up for") {
  const auto kind = GENERATE(FrameKind::grant, FrameKind::ack);
  CAPTURE(static_cast<int>(kind));
  ZmqLinkOptions sender, receiver;
  sender.patience = receiver.patience = 0.05;
  receiver.faults = [&, left = 2](const FrameHeader& frame) mutable {
    return frame.kind == kind && left-- > 0 ? LinkFault::drop : LinkFault::none;
  };
  ZmqPair pair(two_devices(true), sender, receiver);
  auto data = pattern(frame_payload_bytes + 5, 3);
  std::vector<std::byte> buffer(data.size());
  pair.hub1.grant({key_of(0), d0, d1, buffer.data(), buffer.size()});
  pair.hub0.send({key_of(0), d0, d1, data.data(), data.size(), false});
  CHECK(pair.inbox1.wait_for(LinkEvent::Kind::arrived).data == buffer.data());
  CHECK(pair.inbox0.wait_for(LinkEvent::Kind::delivered).key == key_of(0));
  CHECK(buffer == data);
  CHECK(pair.inbox1.size() == 0);  // it arrived once
}

TEST_CASE("a process that goes away is reported to every device") {
  ZmqPair pair;
  pair.hub1.set_remote(nullptr);
  pair.link1.reset();
  const LinkEvent lost = pair.inbox0.wait_for(LinkEvent::Kind::lost);
  CHECK(lost.error.code == ErrorCode::peer_lost);
  CHECK(lost.error.text.find("p1") != std::string::npos);
}

TEST_CASE("L136 a link of another run that knows the port is not answered, nor its tensors taken") {
  ZmqLinkOptions ours;
  ours.run = 7;
  ZmqPair pair(two_devices(true), ours, ours);
  LinkHub left_over(two_devices(true), false);  // same process number, epoch and devices
  left_over.set_epoch(epoch);
  for (const std::uint64_t run : {std::uint64_t{0}, std::uint64_t{8}}) {
    ZmqLinkOptions theirs;
    theirs.run = run;
    auto stranger = ZmqLink::open(left_over, 0, "127.0.0.1", theirs);
    REQUIRE(stranger.ok());
    const Status connected =
        (*stranger)->connect({{1, "p1", "127.0.0.1", pair.link1->port(), {d1}}}, 0.3);
    REQUIRE_FALSE(connected.ok());
    CHECK(connected.error().code == ErrorCode::timeout);
  }
  CHECK(pair.hub1.counters().stale_epoch >= 2);  // their hellos
  std::vector<std::byte> buffer(3, std::byte{0x5a});
  pair.hub1.grant({key_of(0), d0, d1, buffer.data(), buffer.size()});
  (void)pair.inbox0.wait_for(LinkEvent::Kind::granted);
  FrameHeader frame;
  frame.kind = FrameKind::data;
  frame.run = 8;
  frame.key = key_of(0);
  frame.to = d1;
  frame.total = 3;
  frame.payload_bytes = 3;
  const std::string payload = "abc";
  frame.payload_checksum =
      payload_checksum({reinterpret_cast<const std::byte*>(payload.data()), payload.size()});
  const auto before = pair.hub1.counters().stale_epoch;
  throw_at(pair.link1->port(), {text_of(encode(frame)), payload});
  CHECK(soon([&] { return pair.hub1.counters().stale_epoch == before + 1; }));
  CHECK(buffer == std::vector<std::byte>(3, std::byte{0x5a}));
}

TEST_CASE("only loopback addresses are opened or connected to") {
  LinkHub hub(two_devices(true), false);
  for (const char* host : {"0.0.0.0", "10.1.2.3", "example.org", "127.0.0.1.evil", "128.0.0.1"}) {
    const auto link = ZmqLink::open(hub, 0, host);
    REQUIRE_FALSE(link.ok());
    CHECK(link.error().code == ErrorCode::invalid_input);
  }
  CHECK(is_loopback("127.0.0.1"));
  CHECK(is_loopback("127.9.9.9"));
  CHECK(is_loopback("localhost"));
  auto link = ZmqLink::open(hub, 0, "127.0.0.1");
  REQUIRE(link.ok());
  CHECK((*link)->connect({{1, "p1", "10.1.2.3", 1, {d1}}}, 1).error().code ==
        ErrorCode::invalid_input);
}

TEST_CASE("a peer that does not answer is named at the deadline") {
  LinkHub hub(two_devices(true), false);
  hub.set_epoch(epoch);
  auto link = ZmqLink::open(hub, 0, "127.0.0.1");
  REQUIRE(link.ok());
  const Status connected = (*link)->connect({{1, "p1", "127.0.0.1", 1, {d1}}}, 0.3);
  REQUIRE_FALSE(connected.ok());
  CHECK(connected.error().code == ErrorCode::timeout);
  CHECK(connected.error().text.find("p1") != std::string::npos);
}
