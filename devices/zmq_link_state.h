/// What the thread of a ZmqLink owns: sockets, peers, credits and transfers on their way. Included
/// by the link's sources alone.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/eventfd.h>
#include <unistd.h>

#include <zmq.hpp>

#include "devices/link_frame.h"
#include "devices/zmq_link.h"

namespace troupe {

struct ZmqLink::State : std::enable_shared_from_this<ZmqLink::State> {
  struct Out {
    FrameHeader header;
    const std::byte* data = nullptr;
    LinkFault fault = LinkFault::none;
  };
  struct Peer {
    LinkPeer who;
    zmq::socket_t dealer, monitor;
    std::deque<Out> queue;
    bool heard = false;     ///< its hello came
    bool answered = false;  ///< its welcome came
    bool lost = false;
  };
  /// Of the receiver, from the grant until the acknowledgement.
  struct Incoming {
    Grant grant;
    Bytes received = 0;         ///< of the attempt in hand, without a gap
    std::uint32_t attempt = 0;  ///< frames of earlier ones are passed over
    bool whole = false;         ///< all came; the news of it is held back
    Seconds regrant_at = 0;     ///< where nothing has come by then
    Seconds regrant_after = 0;
  };
  /// Of the sender, from the grant until the acknowledgement.
  struct Sending {
    Transfer transfer;
    Seconds begin = 0;
    std::uint32_t attempt = 0;
    Seconds acknowledged_by = 0;  ///< or it is sent again; 0: its frames still wait in a queue
    bool leaving = false;         ///< ZeroMQ has frames of this attempt, and may read their bytes
  };

  State(LinkHub& link_hub, std::uint32_t number, ZmqLinkOptions with)
      : hub(link_hub), process(number), options(std::move(with)) {}
  ~State() {
    if (event_fd >= 0) (void)::close(event_fd);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // ---- any thread ----

  void post(std::function<void()> call) {
    const std::lock_guard lock(mutex);
    if (closed) return;
    todo.push_back(std::move(call));
    const std::uint64_t one = 1;
    (void)!::write(event_fd, &one, sizeof one);
  }

  // ---- the thread that owns the sockets ----

  Status bind(const std::string& host);
  void loop();
  void poll_once();
  void connect_to(const LinkPeer& who);
  void queue(std::uint32_t to, FrameHeader header, const std::byte* data = nullptr);
  void flush(Peer& peer);
  void pop(Peer& peer);
  void receive_all();
  void receive(const FrameHeader& frame, std::span<const std::byte> payload);
  void watch(Peer& peer);
  void lose(Peer& peer, const std::string& why);
  void answer_hello(Peer& peer);
  void note_connected();
  const std::string& name_of(DeviceId device) const;

  // ---- the same thread: transfers (zmq_link_transfers.cpp) ----

  void send_grant(const Grant& grant);
  void granted(const FrameHeader& frame);
  void start(const Transfer& transfer);
  void send_attempt(Sending& one);
  /// The bytes from `offset` on that fit a frame; none at the tensor's end.
  FrameHeader queue_data(const Sending& one, Bytes offset);
  void sent(const FrameHeader& last);
  void send_again(const TransferKey& key, const std::string& why);
  void received_data(const FrameHeader& frame, std::span<const std::byte> payload);
  void ask_again(Incoming& one, const FrameHeader& frame, const std::string& why);
  void complete(const TransferKey& key, const FrameHeader& frame);
  void acknowledge(const TransferKey& key, const FrameHeader& frame);
  void finish_sending(const FrameHeader& frame);
  void forget_queued(const TransferKey& key, Peer& peer);
  void sending_failed(const FrameHeader& frame);
  void give_up(const FrameHeader& frame, const Error& error);
  void sweep();
  std::string describe(const TransferKey& key, DeviceId from, DeviceId to) const;
  Peer* peer_of(DeviceId device) {
    const auto found = process_of.find(device);
    return found == process_of.end() ? nullptr : &peers.at(found->second);
  }

  LinkHub& hub;
  const std::uint32_t process;
  const ZmqLinkOptions options;
  std::string own_name = "this process";
  zmq::context_t context{1};
  zmq::socket_t router;
  std::uint16_t port = 0;
  std::map<std::uint32_t, Peer> peers;
  std::set<std::uint32_t> early_hellos;  ///< of processes that are not known here yet
  std::map<DeviceId, std::uint32_t> process_of;
  std::map<TransferKey, Bytes> credits;      ///< granted by remote receivers
  std::map<TransferKey, Transfer> parked;    ///< sends that wait for a grant
  std::map<TransferKey, Sending> sending;    ///< not acknowledged yet
  std::map<TransferKey, Incoming> incoming;  ///< granted here
  /// The last acknowledgements, oldest first: a tensor that comes once more is acknowledged again.
  std::deque<TransferKey> acknowledged;
  Seconds next_sweep = 0;
  std::thread thread;

  std::mutex mutex;
  std::condition_variable connected;
  std::vector<std::string> unanswered;  ///< peers; guarded by mutex
  std::string lost_peer;                ///< guarded by mutex
  std::deque<std::function<void()>> todo;
  bool closed = false;
  bool stop = false;
  int event_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
};

}  // namespace troupe
