// Transfers of a ZeroMQ link: grants, attempts, acknowledgements, and what happens when frames come
// damaged or not at all. All on the link's thread.
#include "devices/zmq_link_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "devices/threads.h"

namespace troupe {
namespace {

constexpr std::size_t most_credits = 1 << 16;
constexpr std::size_t acknowledgements_kept = 4096;
constexpr Seconds longest_regrant = 16;

/// A frame of another kind about the same tensor.
FrameHeader reply_to(const FrameHeader& frame, FrameKind kind) {
  FrameHeader reply = frame;
  reply.kind = kind;
  reply.payload_bytes = 0;
  reply.payload_checksum = 0;
  return reply;
}

bool is_last(const FrameHeader& frame) {
  return frame.offset + frame.payload_bytes == frame.total;
}

}  // namespace

std::string ZmqLink::State::describe(const TransferKey& key, DeviceId from, DeviceId to) const {
  return fmt::format("{} of step {} from d{} ({}) to d{} ({})", to_string(key.action), key.step,
                     from.value, name_of(from), to.value, name_of(to));
}

// ---- the sender's side ----

void ZmqLink::State::granted(const FrameHeader& frame) {
  if (credits.count(frame.key) != 0 || sending.count(frame.key) != 0) return;  // repeated
  if (credits.size() >= most_credits) {
    hub.count_unexpected();
    return;
  }
  LinkEvent event = event_of(LinkEvent::Kind::granted, frame.key, frame.from, frame.to);
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
}

void ZmqLink::State::start(const Transfer& transfer) {
  const Peer* peer = peer_of(transfer.to);
  if (peer == nullptr || peer->lost) return;  // the loss was reported
  Sending& one = sending[transfer.key];
  one = {transfer, monotonic_seconds(), 0, 0, false};
  send_attempt(one);
}

FrameHeader ZmqLink::State::queue_data(const Sending& one, Bytes offset) {
  const Transfer& transfer = one.transfer;
  FrameHeader frame;
  frame.kind = FrameKind::data;
  frame.key = transfer.key;
  frame.from = transfer.from;
  frame.to = transfer.to;
  frame.attempt = one.attempt;
  frame.offset = offset;
  frame.total = transfer.bytes;
  frame.payload_bytes =
      static_cast<std::uint32_t>(std::min(frame_payload_bytes, transfer.bytes - offset));
  frame.begin = one.begin;
  queue(peer_of(transfer.to)->who.process, frame, transfer.data + offset);
  return frame;
}

void ZmqLink::State::send_attempt(Sending& one) {
  one.acknowledged_by = 0;
  one.leaving = false;
  Bytes offset = 0;
  do {
    offset += queue_data(one, offset).payload_bytes;
  } while (offset < one.transfer.bytes);
}

/// The last frame of an attempt is with ZeroMQ: from now on an acknowledgement is due.
void ZmqLink::State::sent(const FrameHeader& last) {
  const auto found = sending.find(last.key);
  if (found == sending.end() || found->second.attempt != last.attempt) return;
  const Seconds patience =
      options.patience * static_cast<double>(1U << std::min(last.attempt, 16U));
  found->second.acknowledged_by = monotonic_seconds() +
                                  hub.hold_seconds(last.from, last.to, last.total, last.key.step) +
                                  patience;
}

void ZmqLink::State::send_again(const TransferKey& key, const std::string& why) {
  Sending& one = sending.at(key);
  const Transfer transfer = one.transfer;
  Peer* peer = peer_of(transfer.to);
  if (peer == nullptr || peer->lost) return;
  forget_queued(key, *peer);
  if (one.attempt < options.resend_limit) {
    ++one.attempt;
    hub.count_resent();
    send_attempt(one);
    return;
  }
  FrameHeader failed;
  failed.kind = FrameKind::failed;
  failed.key = key;
  failed.from = transfer.from;
  failed.to = transfer.to;
  failed.attempt = one.attempt;
  queue(peer->who.process, failed);
  LinkEvent event = event_of(LinkEvent::Kind::lost, key, transfer.from, transfer.to);
  event.error = {ErrorCode::timeout,
                 fmt::format("{}: {}; sent {} times in all",
                             describe(key, transfer.from, transfer.to), why, one.attempt + 1)};
  sending.erase(key);
  (void)hub.deliver(event.from, event);
}

void ZmqLink::State::forget_queued(const TransferKey& key, Peer& peer) {
  std::erase_if(peer.queue, [&](const Out& out) {
    return out.header.kind == FrameKind::data && out.header.key == key;
  });
}

void ZmqLink::State::finish_sending(const FrameHeader& frame) {
  const auto found = sending.find(frame.key);
  if (found == sending.end()) {
    hub.count_unexpected();
    return;
  }
  Sending& one = found->second;
  if (frame.attempt > one.attempt) {
    hub.count_unexpected();
    return;
  }
  if (frame.attempt < one.attempt) {
    Peer* peer = peer_of(one.transfer.to);
    if (peer == nullptr || peer->lost) return;  // the loss was reported
    // An earlier attempt has arrived after all: the rest of this one is not worth its time. What
    // ZeroMQ has of it, whose bytes it may still read, is followed by a frame without bytes, which
    // will be acknowledged.
    forget_queued(frame.key, *peer);
    if (one.leaving) {
      one.acknowledged_by = 0;
      (void)queue_data(one, one.transfer.bytes);
      return;
    }
  }
  LinkEvent event =
      event_of(LinkEvent::Kind::delivered, frame.key, one.transfer.from, one.transfer.to);
  event.begin = one.begin;
  event.end = frame.end;
  event.resent = one.attempt;
  sending.erase(found);
  (void)hub.deliver(event.from, event);
}

/// The other end has given up a tensor that goes there, or one that comes from there.
void ZmqLink::State::sending_failed(const FrameHeader& frame) {
  const bool from_here = sending.erase(frame.key) != 0;
  if (!from_here && incoming.erase(frame.key) == 0) {
    hub.count_unexpected();
    return;
  }
  LinkEvent event = event_of(LinkEvent::Kind::lost, frame.key, frame.from, frame.to);
  event.error = {ErrorCode::corrupt,
                 fmt::format("{}: given up at the other end after {} attempts",
                             describe(frame.key, frame.from, frame.to), frame.attempt + 1)};
  if (!hub.deliver(from_here ? frame.from : frame.to, event)) hub.count_unexpected();
}

// ---- the receiver's side ----

void ZmqLink::State::send_grant(const Grant& grant) {
  const Peer* peer = peer_of(grant.from);
  if (peer == nullptr || peer->lost) return;
  FrameHeader frame;
  frame.kind = FrameKind::grant;
  frame.key = grant.key;
  frame.from = grant.from;
  frame.to = grant.to;
  frame.total = grant.bytes;
  queue(peer->who.process, frame);
}

void ZmqLink::State::received_data(const FrameHeader& frame, std::span<const std::byte> payload) {
  const auto found = incoming.find(frame.key);
  if (found == incoming.end()) {
    const bool known =
        std::find(acknowledged.begin(), acknowledged.end(), frame.key) != acknowledged.end();
    if (!known)
      hub.count_unexpected();
    else if (is_last(frame))  // its acknowledgement was lost, or is on its way
      acknowledge(frame.key, frame);
    return;
  }
  Incoming& one = found->second;
  if (frame.attempt < one.attempt) return;  // the rest of one that was given up
  if (frame.total > one.grant.bytes || frame.from != one.grant.from || frame.to != one.grant.to) {
    hub.count_malformed();
    give_up(frame, {ErrorCode::protocol, fmt::format("{}: {} bytes come where there is room for {}",
                                                     describe(frame.key, frame.from, frame.to),
                                                     frame.total, one.grant.bytes)});
    return;
  }
  if (one.whole) {
    if (is_last(frame)) one.attempt = frame.attempt;  // the acknowledgement names the last attempt
    return;
  }
  if (frame.attempt > one.attempt) {  // the sender has begun anew
    one.attempt = frame.attempt;
    one.received = 0;
  }
  if (payload_checksum(payload) != frame.payload_checksum) {
    hub.count_malformed();
    ask_again(one, frame,
              fmt::format("the bytes from {} on are not those that were sent", frame.offset));
    return;
  }
  // Frames of an attempt come in order on one connection.
  if (frame.offset != one.received) {
    hub.count_malformed();
    ask_again(one, frame,
              fmt::format("bytes {} to {} came where those from {} on were expected", frame.offset,
                          frame.offset + payload.size(), one.received));
    return;
  }
  if (!payload.empty() && one.grant.data != nullptr)
    std::memcpy(one.grant.data + frame.offset, payload.data(), payload.size());
  one.received += payload.size();
  if (is_last(frame)) complete(frame.key, frame);
}

void ZmqLink::State::ask_again(Incoming& one, const FrameHeader& frame, const std::string& why) {
  if (frame.attempt >= options.resend_limit) {
    give_up(frame,
            {ErrorCode::corrupt,
             fmt::format("{}: damaged in each of {} attempts; in the last one {}",
                         describe(frame.key, frame.from, frame.to), frame.attempt + 1, why)});
    return;
  }
  one.attempt = frame.attempt + 1;
  one.received = 0;
  if (const Peer* peer = peer_of(frame.from))
    queue(peer->who.process, reply_to(frame, FrameKind::again));
}

/// The tensor is here; the news of it waits until the link's time is over.
void ZmqLink::State::complete(const TransferKey& key, const FrameHeader& frame) {
  incoming.at(key).whole = true;
  const Seconds hold = hub.hold_seconds(frame.from, frame.to, frame.total, frame.key.step);
  const auto finish = [key, frame](State& state) {
    const auto found = state.incoming.find(key);
    if (found == state.incoming.end()) return;
    FrameHeader last = frame;
    last.attempt = found->second.attempt;
    last.end = monotonic_seconds();
    LinkEvent event = event_of(LinkEvent::Kind::arrived, key, frame.from, frame.to);
    event.data = found->second.grant.data;
    event.begin = frame.begin;
    event.end = last.end;
    state.incoming.erase(found);
    if (!state.hub.deliver(frame.to, event)) state.hub.count_unexpected();
    state.acknowledge(key, last);
    state.acknowledged.push_back(key);
    if (state.acknowledged.size() > acknowledgements_kept) state.acknowledged.pop_front();
  };
  if (hold <= 0) {
    finish(*this);
    return;
  }
  hub.timer().at(frame.begin + hold, [weak = weak_from_this(), finish] {
    if (const auto state = weak.lock()) state->post([raw = state.get(), finish] { finish(*raw); });
  });
}

void ZmqLink::State::acknowledge(const TransferKey& key, const FrameHeader& frame) {
  FrameHeader ack = reply_to(frame, FrameKind::ack);
  ack.key = key;
  if (ack.end == 0) ack.end = monotonic_seconds();
  if (const Peer* peer = peer_of(frame.from)) queue(peer->who.process, ack);
}

void ZmqLink::State::give_up(const FrameHeader& frame, const Error& error) {
  incoming.erase(frame.key);
  LinkEvent event = event_of(LinkEvent::Kind::lost, frame.key, frame.from, frame.to);
  event.error = error;
  (void)hub.deliver(frame.to, event);
  if (const Peer* peer = peer_of(frame.from))
    queue(peer->who.process, reply_to(frame, FrameKind::failed));
}

// ---- both ----

/// What has waited too long: tensors are sent again, grants repeated.
void ZmqLink::State::sweep() {
  const Seconds now = monotonic_seconds();
  std::vector<TransferKey> overdue;
  for (const auto& [key, one] : sending)
    if (one.acknowledged_by > 0 && now > one.acknowledged_by) overdue.push_back(key);
  for (const TransferKey& key : overdue) send_again(key, "no acknowledgement came");
  for (auto& [key, one] : incoming) {
    if (one.received > 0 || one.whole || one.attempt > 0 || now < one.regrant_at) continue;
    one.regrant_after = std::min(2 * one.regrant_after, longest_regrant);
    one.regrant_at = now + one.regrant_after;
    send_grant(one.grant);
  }
}

}  // namespace troupe
