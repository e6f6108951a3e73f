#include "devices/zmq_link.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <malloc.h>

#include <chrono>
#include <utility>

#include "devices/threads.h"
#include "devices/zmq_link_state.h"

namespace troupe {
namespace {

/// ZeroMQ takes every frame that comes from malloc. Without this its memory goes back to the system
/// and comes again page by page, which costs as much as the transfer.
void keep_frame_memory() {
  static const bool once = [] {
    (void)mallopt(M_MMAP_THRESHOLD, 2 * static_cast<int>(frame_payload_limit));
    (void)mallopt(M_TRIM_THRESHOLD, 32 * static_cast<int>(frame_payload_limit));
    return true;
  }();
  (void)once;
}

}  // namespace

bool is_loopback(const std::string& host) {
  if (host == "localhost" || host == "::1") return true;
  in_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
}

ZmqLink::ZmqLink(std::shared_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<ZmqLink>> ZmqLink::open(LinkHub& hub,
                                               std::uint32_t process,
                                               const std::string& host,
                                               ZmqLinkOptions options) {
  if (!is_loopback(host))
    return Error{ErrorCode::invalid_input,
                 fmt::format("link: \"{}\" is not a loopback address; without keys Troupe listens "
                             "on this machine only: use 127.0.0.1",
                             host)};
  keep_frame_memory();
  auto state = std::make_shared<State>(hub, process, std::move(options));
  if (state->event_fd < 0) return Error{ErrorCode::io, "link: no eventfd is left"};
  TROUPE_TRY(state->bind(host));
  state->thread = std::thread([raw = state.get()] { raw->loop(); });
  return std::unique_ptr<ZmqLink>(new ZmqLink(std::move(state)));
}

ZmqLink::~ZmqLink() {
  state_->post([state = state_.get()] { state->stop = true; });
  state_->thread.join();
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
    state_->todo.clear();
  }
  state_->context.close();
}

std::uint16_t ZmqLink::port() const {
  return state_->port;
}

Status ZmqLink::connect(const std::vector<LinkPeer>& peers,
                        Seconds timeout,
                        const std::string& own_name) {
  for (const LinkPeer& peer : peers)
    if (!is_loopback(peer.host))
      return Error{ErrorCode::invalid_input,
                   fmt::format("link: {} is at \"{}\", which is not a loopback address", peer.name,
                               peer.host)};
  if (peers.empty()) return {};
  State& state = *state_;
  {
    const std::lock_guard lock(state.mutex);
    for (const LinkPeer& peer : peers) state.unanswered.push_back(peer.name);
  }
  state.post([&state, peers, own_name] {
    state.own_name = own_name;
    for (const LinkPeer& peer : peers) state.connect_to(peer);
    state.note_connected();
  });
  std::unique_lock lock(state.mutex);
  const bool done = state.connected.wait_for(
      lock, std::chrono::duration<double>(timeout),
      [&state] { return state.unanswered.empty() || !state.lost_peer.empty(); });
  if (!state.lost_peer.empty())
    return Error{ErrorCode::peer_lost, fmt::format("link to {}: it went away", state.lost_peer)};
  if (!done)
    return Error{ErrorCode::timeout, fmt::format("link: no answer from {} after {:.0f} s",
                                                 state.unanswered.front(), timeout)};
  return {};
}

void ZmqLink::send(const Transfer& transfer) {
  State& state = *state_;
  state.post([&state, transfer] {
    const auto credit = state.credits.find(transfer.key);
    if (credit == state.credits.end()) {
      state.parked[transfer.key] = transfer;
      return;
    }
    state.credits.erase(credit);
    state.start(transfer);
  });
}

void ZmqLink::grant(const Grant& grant) {
  State& state = *state_;
  state.post([&state, grant] {
    if (state.peer_of(grant.from) == nullptr) {
      state.hub.count_unexpected();
      return;
    }
    State::Incoming one;
    one.grant = grant;
    one.regrant_after = state.options.patience;
    one.regrant_at = monotonic_seconds() + one.regrant_after;
    state.incoming[grant.key] = one;
    state.send_grant(grant);
  });
}

}  // namespace troupe
