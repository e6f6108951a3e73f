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
  };
  struct Peer {
    LinkPeer who;
    zmq::socket_t dealer, monitor;
    std::deque<Out> queue;
    bool heard = false;     ///< its hello came
    bool answered = false;  ///< its welcome came
    bool lost = false;
  };
  struct Incoming {
    Grant grant;
    Bytes received = 0;
  };
  struct Sending {
    Transfer transfer;
    Seconds begin = 0;
  };

  State(LinkHub& link_hub, std::uint32_t number) : hub(link_hub), process(number) {}

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
  void start(const Transfer& transfer);
  void queue(std::uint32_t to, FrameHeader header, const std::byte* data = nullptr);
  void flush(Peer& peer);
  void receive_all();
  void receive(const FrameHeader& frame, std::span<const std::byte> payload);
  void received_data(const FrameHeader& frame, std::span<const std::byte> payload);
  void complete(const Incoming& incoming, const FrameHeader& frame);
  void finish_sending(const FrameHeader& frame);
  void damaged(const FrameHeader& frame, const Error& error);
  void watch(Peer& peer);
  void lose(Peer& peer, const std::string& why);
  void answer_hello(Peer& peer);
  void note_connected();
  Peer* peer_of(DeviceId device) {
    const auto found = process_of.find(device);
    return found == process_of.end() ? nullptr : &peers.at(found->second);
  }

  LinkHub& hub;
  const std::uint32_t process;
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
