#include "devices/zmq_link_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "devices/threads.h"

namespace troupe {
namespace {

constexpr int frames_in_flight = 32;  // per peer, each at most 1 MiB
constexpr std::size_t most_credits = 1 << 16;

void nothing_to_free(void*, void*) {}

}  // namespace

Status ZmqLink::State::bind(const std::string& host) try {
  router = zmq::socket_t(context, zmq::socket_type::router);
  router.set(zmq::sockopt::linger, 0);
  router.set(zmq::sockopt::rcvhwm, frames_in_flight);
  router.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(frame_payload_limit + 1024));
  router.set(zmq::sockopt::handshake_ivl, 2000);
  router.set(zmq::sockopt::heartbeat_ivl, 500);
  router.set(zmq::sockopt::heartbeat_timeout, 5000);
  const std::string address = host == "localhost" ? "127.0.0.1" : host;
  if (address == "::1") router.set(zmq::sockopt::ipv6, true);
  router.bind(fmt::format("tcp://{}:0", address == "::1" ? "[::1]" : address));
  const std::string endpoint = router.get(zmq::sockopt::last_endpoint);
  port = static_cast<std::uint16_t>(std::stoul(endpoint.substr(endpoint.rfind(':') + 1)));
  return {};
} catch (const std::exception& thrown) {
  return Error{ErrorCode::io, fmt::format("link: cannot listen on {}: {}", host, thrown.what())};
}

void ZmqLink::State::loop() {
  while (!stop) {
    try {
      poll_once();
    } catch (const zmq::error_t& thrown) {
      if (thrown.num() == EINTR) continue;
      hub.lost({ErrorCode::io, fmt::format("link: {}", thrown.what())});
      break;
    }
  }
  // Sockets belong to this thread, so they go here.
  peers.clear();
  router.close();
}

void ZmqLink::State::poll_once() {
  std::vector<zmq::pollitem_t> items;
  items.push_back({nullptr, event_fd, ZMQ_POLLIN, 0});
  items.push_back({router.handle(), 0, ZMQ_POLLIN, 0});
  std::vector<Peer*> order;
  for (auto& [number, peer] : peers) {
    if (peer.lost) continue;
    order.push_back(&peer);
    items.push_back({peer.monitor.handle(), 0, ZMQ_POLLIN, 0});
    if (!peer.queue.empty()) items.push_back({peer.dealer.handle(), 0, ZMQ_POLLOUT, 0});
  }
  zmq::poll(items, std::chrono::milliseconds{1000});
  if ((items[0].revents & ZMQ_POLLIN) != 0) {
    std::uint64_t count = 0;
    (void)!::read(event_fd, &count, sizeof count);
    std::deque<std::function<void()>> calls;
    {
      const std::lock_guard lock(mutex);
      calls.swap(todo);
    }
    for (const auto& call : calls) call();
  }
  receive_all();
  for (Peer* peer : order) {
    watch(*peer);
    flush(*peer);
  }
}

void ZmqLink::State::connect_to(const LinkPeer& who) {
  Peer& peer = peers[who.process];
  peer.who = who;
  for (const DeviceId device : who.devices) process_of[device] = who.process;
  peer.dealer = zmq::socket_t(context, zmq::socket_type::dealer);
  peer.dealer.set(zmq::sockopt::linger, 0);
  peer.dealer.set(zmq::sockopt::sndhwm, frames_in_flight);
  peer.dealer.set(zmq::sockopt::immediate, true);
  peer.dealer.set(zmq::sockopt::handshake_ivl, 2000);
  peer.dealer.set(zmq::sockopt::heartbeat_ivl, 500);
  peer.dealer.set(zmq::sockopt::heartbeat_timeout, 5000);
  peer.dealer.set(zmq::sockopt::maxmsgsize, std::int64_t{1024});  // nothing comes this way
  if (who.host == "::1") peer.dealer.set(zmq::sockopt::ipv6, true);
  const std::string watched = fmt::format("inproc://monitor-{}", who.process);
  if (zmq_socket_monitor(peer.dealer.handle(), watched.c_str(), ZMQ_EVENT_DISCONNECTED) != 0)
    throw zmq::error_t();
  peer.monitor = zmq::socket_t(context, zmq::socket_type::pair);
  peer.monitor.set(zmq::sockopt::linger, 0);
  peer.monitor.connect(watched);
  const std::string host = who.host == "localhost" ? "127.0.0.1" : who.host;
  peer.dealer.connect(fmt::format("tcp://{}:{}", host == "::1" ? "[::1]" : host, who.port));
  FrameHeader hello;
  hello.kind = FrameKind::hello;
  queue(who.process, hello);
  if (early_hellos.erase(who.process) != 0) answer_hello(peer);
}

void ZmqLink::State::answer_hello(Peer& peer) {
  peer.heard = true;
  FrameHeader welcome;
  welcome.kind = FrameKind::welcome;
  queue(peer.who.process, welcome);
}

void ZmqLink::State::note_connected() {
  const std::lock_guard lock(mutex);
  unanswered.clear();
  for (const auto& [number, peer] : peers)
    if (!peer.answered || !peer.heard) unanswered.push_back(peer.who.name);
  connected.notify_all();
}

void ZmqLink::State::queue(std::uint32_t to, FrameHeader header, const std::byte* data) {
  Peer& peer = peers.at(to);
  if (peer.lost) return;
  header.process = process;
  if (header.kind == FrameKind::hello || header.kind == FrameKind::welcome)
    header.key.epoch = hub.epoch();
  peer.queue.push_back({header, data});
  flush(peer);
}

void ZmqLink::State::flush(Peer& peer) {
  while (!peer.queue.empty() && !peer.lost) {
    Out& out = peer.queue.front();
    const bool has_data = out.header.kind == FrameKind::data;
    if (has_data)
      out.header.payload_checksum = payload_checksum({out.data, out.header.payload_bytes});
    const FrameBytes bytes = encode(out.header);
    zmq::message_t head(bytes.data(), bytes.size());
    const auto flags =
        has_data ? zmq::send_flags::dontwait | zmq::send_flags::sndmore : zmq::send_flags::dontwait;
    if (!peer.dealer.send(head, flags)) return;  // full: the poll says when there is room
    if (has_data) {
      // The bytes stay where they are until the receiver has acknowledged them.
      zmq::message_t body(const_cast<std::byte*>(out.data), out.header.payload_bytes,
                          nothing_to_free, nullptr);
      (void)peer.dealer.send(body, zmq::send_flags::dontwait);
    }
    peer.queue.pop_front();
  }
}

void ZmqLink::State::start(const Transfer& transfer) {
  const Seconds begin = monotonic_seconds();
  Peer* peer = peer_of(transfer.to);
  if (peer == nullptr || peer->lost) return;  // the loss was reported
  sending[transfer.key] = {transfer, begin};
  Bytes offset = 0;
  do {
    FrameHeader frame;
    frame.kind = FrameKind::data;
    frame.key = transfer.key;
    frame.from = transfer.from;
    frame.to = transfer.to;
    frame.offset = offset;
    frame.total = transfer.bytes;
    frame.payload_bytes =
        static_cast<std::uint32_t>(std::min(frame_payload_limit, transfer.bytes - offset));
    frame.begin = begin;
    queue(peer->who.process, frame, transfer.data + offset);
    offset += frame.payload_bytes;
  } while (offset < transfer.bytes);
}

void ZmqLink::State::receive_all() {
  for (int count = 0; count < 64; ++count) {
    zmq::message_t identity, head, body;
    if (!router.recv(identity, zmq::recv_flags::dontwait)) return;
    if (!identity.more() || !router.recv(head, zmq::recv_flags::dontwait)) continue;
    if (head.more()) (void)router.recv(body, zmq::recv_flags::dontwait);
    bool too_many = head.more() && body.more();
    while (too_many) {
      zmq::message_t rest;
      (void)router.recv(rest, zmq::recv_flags::dontwait);
      too_many = rest.more();
      if (!too_many) hub.count_malformed();
    }
    const std::span<const std::byte> head_bytes(static_cast<const std::byte*>(head.data()),
                                                head.size());
    const std::span<const std::byte> payload(static_cast<const std::byte*>(body.data()),
                                             body.size());
    const auto frame = decode(head_bytes, payload.size());
    if (frame)
      receive(*frame, payload);
    else
      hub.count_malformed();
  }
  const std::uint64_t one = 1;  // there may be more: come back after the other work
  (void)!::write(event_fd, &one, sizeof one);
}

void ZmqLink::State::receive(const FrameHeader& frame, std::span<const std::byte> payload) {
  if (frame.key.epoch != hub.epoch()) {
    hub.count_stale();
    return;
  }
  const auto found = peers.find(frame.process);
  if (found == peers.end()) {
    if (frame.kind == FrameKind::hello && early_hellos.size() < 4096)
      early_hellos.insert(frame.process);
    else
      hub.count_unexpected();
    return;
  }
  Peer& peer = found->second;
  switch (frame.kind) {
    case FrameKind::hello:
      answer_hello(peer);
      note_connected();
      return;
    case FrameKind::welcome:
      peer.answered = true;
      note_connected();
      return;
    case FrameKind::grant: {
      if (credits.size() >= most_credits) {
        hub.count_unexpected();
        return;
      }
      LinkEvent event;
      event.kind = LinkEvent::Kind::granted;
      event.key = frame.key;
      event.from = frame.from;
      event.to = frame.to;
      const auto waiting = parked.find(frame.key);
      if (!hub.deliver(frame.from, event)) {
        hub.count_unexpected();
        return;
      }
      if (waiting == parked.end()) {
        credits[frame.key] = frame.total;
        return;
      }
      const Transfer transfer = waiting->second;
      parked.erase(waiting);
      start(transfer);
      return;
    }
    case FrameKind::data: received_data(frame, payload); return;
    case FrameKind::ack: finish_sending(frame); return;
    case FrameKind::failed: {
      LinkEvent event;
      event.kind = LinkEvent::Kind::lost;
      event.key = frame.key;
      event.error = {ErrorCode::corrupt, fmt::format("{} was damaged on its way to {}",
                                                     to_string(frame.key.action), peer.who.name)};
      if (!hub.deliver(frame.from, event)) hub.count_unexpected();
      return;
    }
  }
}

void ZmqLink::State::received_data(const FrameHeader& frame, std::span<const std::byte> payload) {
  const auto found = incoming.find(frame.key);
  if (found == incoming.end()) {
    hub.count_unexpected();
    return;
  }
  Incoming& one = found->second;
  if (payload_checksum(payload) != frame.payload_checksum) {
    hub.count_malformed();
    damaged(frame, {ErrorCode::corrupt,
                    fmt::format("{} step {}: bytes from {} on are not those that were sent",
                                to_string(frame.key.action), frame.key.step, frame.offset)});
    return;
  }
  // Frames of a transfer come in order on one connection.
  if (frame.total > one.grant.bytes || frame.offset != one.received ||
      frame.from != one.grant.from || frame.to != one.grant.to) {
    hub.count_malformed();
    damaged(frame, {ErrorCode::protocol,
                    fmt::format("{} step {}: bytes {} to {} of {} came where {} of at most {} were "
                                "expected",
                                to_string(frame.key.action), frame.key.step, frame.offset,
                                frame.offset + payload.size(), frame.total, one.received,
                                one.grant.bytes)});
    return;
  }
  if (!payload.empty() && one.grant.data != nullptr)
    std::memcpy(one.grant.data + frame.offset, payload.data(), payload.size());
  one.received += payload.size();
  if (one.received < frame.total) return;
  const Incoming whole = one;
  incoming.erase(found);
  complete(whole, frame);
}

/// The tensor is here; the news of it waits until the link's time is over.
void ZmqLink::State::complete(const Incoming& whole, const FrameHeader& frame) {
  const Seconds hold = hub.hold_seconds(frame.from, frame.to, frame.total);
  const auto finish = [whole, frame](State& state) {
    LinkEvent event;
    event.kind = LinkEvent::Kind::arrived;
    event.key = frame.key;
    event.from = frame.from;
    event.to = frame.to;
    event.data = whole.grant.data;
    event.begin = frame.begin;
    event.end = monotonic_seconds();
    FrameHeader ack = frame;
    ack.kind = FrameKind::ack;
    ack.payload_bytes = 0;
    ack.payload_checksum = 0;
    ack.end = event.end;
    if (!state.hub.deliver(frame.to, event)) state.hub.count_unexpected();
    state.queue(frame.process, ack);
  };
  if (hold <= 0) {
    finish(*this);
    return;
  }
  hub.timer().at(frame.begin + hold, [weak = weak_from_this(), finish] {
    if (const auto state = weak.lock()) state->post([raw = state.get(), finish] { finish(*raw); });
  });
}

void ZmqLink::State::finish_sending(const FrameHeader& frame) {
  const auto found = sending.find(frame.key);
  if (found == sending.end()) {
    hub.count_unexpected();
    return;
  }
  LinkEvent event;
  event.kind = LinkEvent::Kind::delivered;
  event.key = frame.key;
  event.from = found->second.transfer.from;
  event.to = found->second.transfer.to;
  event.begin = found->second.begin;
  event.end = frame.end;
  sending.erase(found);
  (void)hub.deliver(event.from, event);
}

void ZmqLink::State::damaged(const FrameHeader& frame, const Error& error) {
  incoming.erase(frame.key);
  LinkEvent event;
  event.kind = LinkEvent::Kind::lost;
  event.key = frame.key;
  event.from = frame.from;
  event.to = frame.to;
  event.error = error;
  (void)hub.deliver(frame.to, event);
  if (const Peer* peer = peer_of(frame.from)) {
    FrameHeader failed = frame;
    failed.kind = FrameKind::failed;
    failed.payload_bytes = 0;
    queue(peer->who.process, failed);
  }
}

void ZmqLink::State::watch(Peer& peer) {
  if (peer.lost) return;
  zmq::message_t event, endpoint;
  while (peer.monitor.recv(event, zmq::recv_flags::dontwait)) {
    if (event.more()) (void)peer.monitor.recv(endpoint, zmq::recv_flags::dontwait);
    if (event.size() < 2) continue;
    std::uint16_t what = 0;
    std::memcpy(&what, event.data(), sizeof what);
    if (what == ZMQ_EVENT_DISCONNECTED) {
      lose(peer, "its connection ended");
      return;
    }
  }
}

void ZmqLink::State::lose(Peer& peer, const std::string& why) {
  peer.lost = true;
  peer.queue.clear();
  {
    const std::lock_guard lock(mutex);
    lost_peer = peer.who.name;
    connected.notify_all();
  }
  hub.lost({ErrorCode::peer_lost, fmt::format("link to {}: {}", peer.who.name, why)});
}

}  // namespace troupe
