#include "devices/zmq_link_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "devices/threads.h"

namespace troupe {
namespace {

constexpr int frames_in_flight = 64;  // per peer and direction
constexpr auto sweep_interval = std::chrono::milliseconds{100};

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
  const bool waits = !sending.empty() || !incoming.empty();
  zmq::poll(items, waits ? sweep_interval : std::chrono::milliseconds{1000});
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
  const Seconds now = monotonic_seconds();
  if (now < next_sweep) return;
  next_sweep = now + std::chrono::duration<double>(sweep_interval).count();
  sweep();
}

const std::string& ZmqLink::State::name_of(DeviceId device) const {
  const auto found = process_of.find(device);
  return found == process_of.end() ? own_name : peers.at(found->second).who.name;
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
  header.run = options.run;
  if (header.kind == FrameKind::hello || header.kind == FrameKind::welcome)
    header.key.epoch = hub.epoch();
  const LinkFault fault = options.faults ? options.faults(header) : LinkFault::none;
  // Grants and acknowledgements do not wait behind tensors: the other end has not that patience.
  const auto is_data = [](const Out& out) { return out.header.kind == FrameKind::data; };
  const auto at = is_data({header, data, fault})
                      ? peer.queue.end()
                      : std::find_if(peer.queue.begin(), peer.queue.end(), is_data);
  peer.queue.insert(at, {header, data, fault});
  flush(peer);
}

void ZmqLink::State::flush(Peer& peer) {
  while (!peer.queue.empty() && !peer.lost) {
    Out& out = peer.queue.front();
    const bool has_data = out.header.kind == FrameKind::data;
    if (has_data &&
        out.header.payload_checksum == 0)  // else it was full when this was tried before
      out.header.payload_checksum = payload_checksum({out.data, out.header.payload_bytes});
    if (out.fault == LinkFault::drop) {
      pop(peer);
      continue;
    }
    const FrameBytes bytes = encode(out.header);
    zmq::message_t head(bytes.data(), bytes.size());
    const auto flags =
        has_data ? zmq::send_flags::dontwait | zmq::send_flags::sndmore : zmq::send_flags::dontwait;
    if (!peer.dealer.send(head, flags)) return;  // full: the poll says when there is room
    if (has_data) {
      // The bytes stay where they are until the receiver has acknowledged them.
      zmq::message_t body(const_cast<std::byte*>(out.data), out.header.payload_bytes,
                          nothing_to_free, nullptr);
      if (out.fault == LinkFault::damage && out.header.payload_bytes > 0) {
        body.rebuild(out.data, out.header.payload_bytes);
        *static_cast<std::byte*>(body.data()) ^= std::byte{1};
      }
      (void)peer.dealer.send(body, zmq::send_flags::dontwait);
    }
    pop(peer);
  }
}

void ZmqLink::State::pop(Peer& peer) {
  const FrameHeader header = peer.queue.front().header;
  peer.queue.pop_front();
  if (header.kind != FrameKind::data) return;
  if (const auto found = sending.find(header.key);
      found != sending.end() && found->second.attempt == header.attempt)
    found->second.leaving = true;
  if (header.offset + header.payload_bytes == header.total) sent(header);
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
  if (frame.run != options.run || frame.key.epoch != hub.epoch()) {
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
    case FrameKind::grant: granted(frame); return;
    case FrameKind::data: received_data(frame, payload); return;
    case FrameKind::ack: finish_sending(frame); return;
    case FrameKind::again: {
      const auto one = sending.find(frame.key);
      if (one == sending.end())
        hub.count_unexpected();
      else if (one->second.attempt == frame.attempt)  // else it is on its way again already
        send_again(frame.key, "came damaged");
      return;
    }
    case FrameKind::failed: sending_failed(frame); return;
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
