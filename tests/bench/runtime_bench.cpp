// What the runtime costs: links against plain sockets and bare ZeroMQ, actor messages, one stage
// through the actors against the bare step loop, emulated pipelines against their simulated
// schedule. Comparisons alternate within one run; medians.
//
//   bench_runtime [links] [messages] [stage] [pipelines]
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

#include <zmq.hpp>

#include "actors/caf_facade.h"
#include "actors/system_config.h"
#include "devices/link_frame.h"
#include "devices/zmq_link.h"
#include "tests/support/run_fixture.h"

using namespace troupe;
using namespace troupe::test;

namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.at(values.size() / 2);
}

// ---- links ----

/// Two ends of a ZeroMQ link in one process.
class LinkPair {
 public:
  LinkPair() : hub0_(cluster(), false), hub1_(cluster(), false) {
    hub0_.set_epoch({1});
    hub1_.set_epoch({1});
    hub0_.attach(DeviceId{0}, [this](const LinkEvent& event) { note(event); });
    hub1_.attach(DeviceId{1}, [](const LinkEvent&) {});
    link0_ = std::move(*ZmqLink::open(hub0_, 0, "127.0.0.1"));
    link1_ = std::move(*ZmqLink::open(hub1_, 1, "127.0.0.1"));
    hub0_.set_remote(link0_.get());
    hub1_.set_remote(link1_.get());
    std::thread other([this] {
      EXPECTS(link1_->connect({{0, "a", "127.0.0.1", link0_->port(), {DeviceId{0}}}}, 20).ok());
    });
    EXPECTS(link0_->connect({{1, "b", "127.0.0.1", link1_->port(), {DeviceId{1}}}}, 20).ok());
    other.join();
  }
  /// Seconds from sending until the receiver has acknowledged. It has granted the buffer before, as
  /// receivers in a step do.
  double send(std::vector<std::byte>& from, std::vector<std::byte>& to) {
    TransferKey key;
    key.epoch = {1};
    key.step = ++step_;
    key.action.op = Op::transfer_forward;
    hub1_.grant({key, DeviceId{0}, DeviceId{1}, to.data(), to.size()});
    std::unique_lock lock(mutex_);
    came_.wait(lock, [&] { return granted_ == step_; });
    lock.unlock();
    const auto begin = Clock::now();
    hub0_.send({key, DeviceId{0}, DeviceId{1}, from.data(), from.size(), false});
    lock.lock();
    came_.wait(lock, [&] { return delivered_ == step_; });
    return since(begin);
  }

 private:
  static ClusterSpec cluster() {
    ClusterSpec cluster;
    cluster.nodes = {{"n0", false}, {"n1", true}};
    cluster.devices.resize(2);
    cluster.devices[1].node = NodeId{1};
    return cluster;
  }
  void note(const LinkEvent& event) {
    const std::lock_guard lock(mutex_);
    if (event.kind == LinkEvent::Kind::granted) granted_ = event.key.step;
    if (event.kind == LinkEvent::Kind::delivered) delivered_ = event.key.step;
    came_.notify_one();
  }
  LinkHub hub0_, hub1_;
  std::unique_ptr<ZmqLink> link0_, link1_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::uint64_t step_ = 0, granted_ = 0, delivered_ = 0;
};

/// The same bytes through a connected pair of stream sockets, acknowledged by one byte.
class PlainPair {
 public:
  explicit PlainPair(bool tcp) {
    if (!tcp) {
      EXPECTS(socketpair(AF_UNIX, SOCK_STREAM, 0, ends_) == 0);
      return;
    }
    const int server = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    socklen_t length = sizeof address;
    EXPECTS(bind(server, any, length) == 0 && listen(server, 1) == 0);
    EXPECTS(getsockname(server, any, &length) == 0);
    ends_[0] = socket(AF_INET, SOCK_STREAM, 0);
    EXPECTS(connect(ends_[0], any, length) == 0);
    ends_[1] = accept(server, nullptr, nullptr);
    EXPECTS(ends_[1] >= 0);
    close(server);
    const int on = 1;  // as ZeroMQ does
    for (const int end : ends_)
      EXPECTS(setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
  }
  ~PlainPair() {
    for (const int end : ends_) close(end);
  }
  PlainPair(const PlainPair&) = delete;
  PlainPair& operator=(const PlainPair&) = delete;

  double send(std::vector<std::byte>& from, std::vector<std::byte>& to) {
    std::thread receiver([&] {
      EXPECTS(write(ends_[1], "r", 1) == 1);
      for (std::size_t at = 0; at < to.size();) {
        const ssize_t got = read(ends_[1], to.data() + at, to.size() - at);
        EXPECTS(got > 0);
        at += static_cast<std::size_t>(got);
      }
      EXPECTS(write(ends_[1], "k", 1) == 1);
    });
    char word = 0;
    EXPECTS(read(ends_[0], &word, 1) == 1);  // the thread runs
    const auto begin = Clock::now();
    for (std::size_t at = 0; at < from.size();) {
      const ssize_t put = write(ends_[0], from.data() + at, from.size() - at);
      EXPECTS(put > 0);
      at += static_cast<std::size_t>(put);
    }
    EXPECTS(read(ends_[0], &word, 1) == 1);
    const double seconds = since(begin);
    receiver.join();
    return seconds;
  }

 private:
  int ends_[2] = {-1, -1};
};

/// The same bytes through two pairs of ZeroMQ sockets like the link's, and nothing else: no sums,
/// no copy into the receiver's buffer.
class BareZmqPair {
 public:
  BareZmqPair() {
    bind_and_connect(in_, out_);
    bind_and_connect(back_in_, back_out_);
  }
  double send(std::vector<std::byte>& from) {
    std::thread receiver([&] {
      (void)back_out_.send(zmq::buffer("r", 1), zmq::send_flags::none);
      for (std::size_t at = 0; at < from.size(); at += take(in_)) {
      }
      (void)back_out_.send(zmq::buffer("k", 1), zmq::send_flags::none);
    });
    (void)take(back_in_);  // the thread runs
    const auto begin = Clock::now();
    for (std::size_t at = 0; at < from.size(); at += frame_payload_bytes) {
      zmq::message_t frame(
          from.data() + at, std::min(frame_payload_bytes, from.size() - at), [](void*, void*) {},
          nullptr);
      (void)out_.send(frame, zmq::send_flags::none);
    }
    (void)take(back_in_);
    const double seconds = since(begin);
    receiver.join();
    return seconds;
  }

 private:
  static void bind_and_connect(zmq::socket_t& in, zmq::socket_t& out) {
    in.bind("tcp://127.0.0.1:0");
    out.connect(in.get(zmq::sockopt::last_endpoint));
  }
  static std::size_t take(zmq::socket_t& socket) {
    zmq::message_t identity, body;
    EXPECTS(socket.recv(identity).has_value() && socket.recv(body).has_value());
    return body.size();
  }
  zmq::context_t here_{1}, there_{1};
  zmq::socket_t out_{here_, ZMQ_DEALER}, in_{there_, ZMQ_ROUTER};
  zmq::socket_t back_out_{there_, ZMQ_DEALER}, back_in_{here_, ZMQ_ROUTER};
};

void bench_links() {
  LinkPair pair;
  BareZmqPair zmq;
  PlainPair tcp(true), unix_domain(false);
  for (const std::size_t bytes :
       {std::size_t{4} << 10, std::size_t{1} << 20, std::size_t{16} << 20}) {
    std::vector<std::byte> from(bytes, std::byte{1}), to(bytes);
    std::vector<double> link, bare, plain, local;
    for (int round = 0; round < 31; ++round) {
      link.push_back(pair.send(from, to));
      bare.push_back(zmq.send(from));
      plain.push_back(tcp.send(from, to));
      local.push_back(unix_domain.send(from, to));
    }
    const double size = static_cast<double>(bytes) / (1 << 20);
    const auto rate = [&](const std::vector<double>& seconds) { return size / median(seconds); };
    fmt::print(
        "link {:>9}: {:6.0f} us {:5.0f} MiB/s; bare ZeroMQ {:5.0f}, plain TCP {:5.0f}, Unix "
        "socket {:5.0f} MiB/s: link {:.2f}, {:.2f}, {:.2f} of them\n",
        format_bytes(bytes), median(link) * 1e6, rate(link), rate(bare), rate(plain), rate(local),
        rate(link) / rate(bare), rate(link) / rate(plain), rate(link) / rate(local));
  }
}

// ---- messages ----

caf::behavior echo(caf::event_based_actor*) {
  return {[](std::uint64_t n) { return n; }};
}

void bench_messages() {
  SystemConfig config;
  caf::actor_system system(config);
  caf::scoped_actor self{system};
  const auto actor = system.spawn(echo);
  std::vector<double> trips;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const auto begin = Clock::now();
    self->request(actor, caf::infinite, i).receive([](std::uint64_t) {}, [](caf::error&) {});
    trips.push_back(since(begin));
  }
  const auto begin = Clock::now();
  constexpr std::uint64_t count = 200000;
  for (std::uint64_t i = 0; i < count; ++i) self->send(actor, i);
  std::uint64_t seen = 0;
  self->receive_while([&] { return seen < count; })([&](std::uint64_t) { ++seen; });
  const double seconds = since(begin);
  std::sort(trips.begin(), trips.end());
  fmt::print("message round trip: p50 {:.1f} us, p99 {:.1f} us; {:.0f} messages/s there and back\n",
             trips[trips.size() / 2] * 1e6, trips[trips.size() * 99 / 100] * 1e6,
             2.0 * count / seconds);
  self->send_exit(actor, caf::exit_reason::user_shutdown);
}

// ---- steps ----

double bare_step(const RunSpec& spec) {
  PlainDevice device;
  StageSpec whole = whole_model(spec.model, spec.shape);
  whole.optimizer = spec.optimizer;
  auto stage = make_stage(device, whole);
  stage->initialize();
  OwnStream own(Stream::Body::fast);
  RandomTokens tokens(spec.model, spec.shape);
  std::vector<double> seconds;
  for (std::uint64_t step = 1; step <= spec.steps; ++step) {
    const auto batch = tokens.batch_for_step(step);
    std::vector<MicrobatchTokens> microbatches;
    for (const MicrobatchData& one : batch.microbatches)
      microbatches.push_back({one.tokens, one.targets, one.sequences, one.first_sample});
    const auto begin = Clock::now();
    (void)run_step(*stage, own.stream, {step, step, 1e-3, microbatches});
    seconds.push_back(since(begin));
  }
  return median(seconds);
}

struct ActorStep {
  double seconds = 0;  ///< of a step, median
  double busy = 0;     ///< of its device, median
};
ActorStep actor_step(const RunSpec& spec) {
  const PlayedRun run = play(spec, with_tokens(spec));
  if (!run.error.empty()) fmt::print(stderr, "{}\n", run.error);
  std::vector<double> seconds, busy;
  for (const StepRow& row : run.rows) {
    seconds.push_back(row.seconds);
    busy.push_back(row.devices.at(0).busy);
  }
  return {median(seconds), median(busy)};
}

void bench_one_stage() {
  ModelSpec model = tiny_gpt2();
  model.width = 256;
  model.ffn_width = 1024;
  model.vocabulary = 512;
  model.context = 64;
  StepShape shape = tiny_shape(4, 4);
  shape.sequence_length = 64;
  RunSpec spec = tiny_run(model, shape, 1, ScheduleKind::one_f_one_b, 6);
  spec.state_hash_every = 0;
  std::vector<double> bares, ratios, busy, gaps;
  for (int round = 0; round < 10; ++round) {
    ActorStep actors;
    if (round % 2 == 0) actors = actor_step(spec);  // neither is always the first
    bares.push_back(bare_step(spec));
    if (round % 2 == 1) actors = actor_step(spec);
    ratios.push_back(actors.seconds / bares.back());
    busy.push_back(actors.busy / bares.back());
    gaps.push_back(actors.seconds - actors.busy);
  }
  fmt::print(
      "one stage, 4 layers of 256: bare step {:.1f} ms, through the actors {:.3f} x: arithmetic "
      "{:.3f} x, the rest {:.0f} us a step\n",
      median(bares) * 1e3, median(ratios), median(busy), median(gaps) * 1e6);
}

void bench_pipelines() {
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble_h1}) {
    RunSpec spec = tiny_run(tiny_gpt2(), tiny_shape(8), 4, kind, 6);
    for (DeviceSpec& device : spec.cluster.devices) {
      device.kind = DeviceKind::emulated;
      for (auto& [layer, seconds] : device.measured) seconds = {5e-3, 5e-3, 5e-3, 1e-3, 1e-3};
    }
    spec.cluster.same_process = {1e-3, 1e8};
    pin_stages(spec, {2, 1, 1, 2});
    const PlayedRun run = play(spec, with_tokens(spec));
    std::vector<double> seconds;
    for (const StepRow& row : run.rows) seconds.push_back(row.seconds);
    fmt::print("4 emulated devices, {}: simulated {:.1f} ms, played {:.3f} x\n", to_string(kind),
               run.plan.predicted_step * 1e3, median(seconds) / run.plan.predicted_step);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto wanted = [&](const std::string& part) {
    return argc < 2 || std::find(argv + 1, argv + argc, part) != argv + argc;
  };
  if (wanted("links")) bench_links();
  if (wanted("messages")) bench_messages();
  if (wanted("stage")) bench_one_stage();
  if (wanted("pipelines")) bench_pipelines();
  return 0;
}
