// Every message that can cross a process boundary comes back as it was, carries epoch and step, and
// stays under the size of a control message when its lists are as long as they get.
#include "actors/messages.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "actors/errors.h"
#include "actors/system_config.h"
#include "tests/support/catch.h"

using namespace troupe;

namespace {

struct World {
  SystemConfig config;
  caf::actor_system system{config};

  template <class M>
  std::vector<char> bytes_of(M message) {
    std::vector<char> bytes;
    caf::binary_serializer sink{system, bytes};
    const auto failure = sink(message);
    REQUIRE_FALSE(static_cast<bool>(failure));
    return bytes;
  }
  /// Checks the round trip by its bytes: what comes back is written as the same bytes.
  template <class M>
  M check(const M& message) {
    static_assert(caf::has_type_id<M>::value);
    static_assert(std::is_same_v<decltype(M::epoch), PlanEpoch>);
    static_assert(std::is_same_v<decltype(M::step), std::uint64_t>);
    INFO(M::name);
    const auto bytes = bytes_of(message);
    CHECK(bytes.size() < control_message_limit);
    M back;
    caf::binary_deserializer source{system, bytes};
    const auto failure = source(back);
    CHECK_FALSE(static_cast<bool>(failure));
    CHECK(source.remaining() == 0);
    CHECK(bytes_of(back) == bytes);
    CHECK(back.epoch == message.epoch);
    CHECK(back.step == message.step);
    // A message that is cut short is refused, not half read.
    if (!bytes.empty()) {
      M cut;
      caf::binary_deserializer partial{system, bytes.data(), bytes.size() - 1};
      CHECK(static_cast<bool>(partial(cut)));
    }
    return back;
  }
};

template <class M>
M made() {
  M message;
  message.epoch = PlanEpoch{3};
  message.step = (std::uint64_t{1} << 40) + 5;
  return message;
}

const double awkward[] = {std::numeric_limits<double>::infinity(),
                          -std::numeric_limits<double>::infinity(),
                          std::numeric_limits<double>::quiet_NaN(),
                          std::numeric_limits<double>::denorm_min(),
                          -0.0,
                          1.0 / 3.0};

}  // namespace

TEST_CASE("L122 messages come back as they were and stay small") {
  World world;
  auto hello = made<Hello>();
  hello.build = std::string(200, 'b');
  hello.node = std::string(128, 'n');
  hello.pid = 1 << 22;
  CHECK(world.check(hello).node == hello.node);
  auto welcome = made<Welcome>();
  welcome.build = "0.1.0";
  CHECK(world.check(welcome).build == "0.1.0");
  auto part = made<DocumentPart>();
  part.document = "plan";
  part.index = 3;
  part.count = 4;
  part.text = std::string(document_part_bytes, '\0');
  CHECK(world.check(part).text == part.text);
  world.check(made<MeasureDevices>());
  auto measured = made<Measured>();
  measured.text = std::string(document_part_bytes, 'x');
  world.check(measured);
  world.check(made<AdoptPlan>());
  auto adopted = made<PlanAdopted>();
  adopted.devices.resize(64);
  world.check(adopted);
  auto peers = made<ConnectPeers>();
  peers.peers.resize(64);
  for (PeerAddress& peer : peers.peers) peer.devices.resize(16);
  CHECK(world.check(peers).peers.size() == 64);
  auto fill = made<FillStages>();
  fill.checkpoint = std::string(4096, 'p');
  world.check(fill);
  world.check(made<Ready>());
  world.check(made<BeginStep>());
  auto finished = made<StepFinished>();
  finished.losses.resize(list_part_count);
  world.check(finished);
  world.check(made<BeginEvaluation>());
  auto evaluated = made<EvaluationFinished>();
  evaluated.losses.resize(list_part_count);
  world.check(evaluated);
  auto progress = made<Progress>();
  progress.waiting = std::string(1000, 'w');
  world.check(progress);
  auto failed = made<DeviceFailed>();
  failed.text = std::string(8192, 'f');
  world.check(failed);
  auto write = made<WriteShards>();
  write.folder = std::string(4096, 'p');
  world.check(write);
  auto written = made<ShardsWritten>();
  written.shards.assign(2, std::string(300, 's'));
  world.check(written);
  auto spans = made<SpansPlayed>();
  spans.spans.resize(list_part_count);
  world.check(spans);
  world.check(made<StopRun>());
  world.check(made<CloseNode>());
}

TEST_CASE("numbers travel as bits: infinities, NaN, denormals and signed zeros arrive") {
  World world;
  auto norms = made<NormsReady>();
  auto hashes = made<StateHashes>();
  norms.sums.resize(list_part_count);
  hashes.hashes.resize(list_part_count);
  std::uint32_t tensor = 0;
  for (const double value : awkward) {
    norms.sums.at(tensor) = {tensor, Bits64(value).bits};
    hashes.hashes.at(tensor) = {tensor, ~Bits64(value).bits};
    ++tensor;
    auto update = made<ApplyUpdate>();
    update.learning_rate = value;
    update.gradient_scale = -value;
    const ApplyUpdate back = world.check(update);
    CHECK(back.learning_rate == Bits64(value));
    CHECK(back.gradient_scale == Bits64(-value));
    auto finished = made<StepFinished>();
    finished.losses = {value};
    finished.busy_seconds = value;
    CHECK(world.check(finished).losses.at(0) == Bits64(value));
    auto spans = made<SpansPlayed>();
    spans.spans = {{{Op::transfer_backward, StageId{1}, MicrobatchId{2}},
                    DeviceId{1},
                    DeviceId{0},
                    value,
                    value}};
    CHECK(world.check(spans).spans == spans.spans);
  }
  CHECK(world.check(norms).sums == norms.sums);
  CHECK(world.check(hashes).hashes == hashes.hashes);
}

TEST_CASE("errors keep their code and text on their way through CAF") {
  World world;
  for (int code = 0; code <= static_cast<int>(ErrorCode::internal); ++code) {
    const Error error{static_cast<ErrorCode>(code), "stage 3: no room"};
    const Error back = from_caf(to_caf(error), world.system);
    CHECK(back.code == error.code);
    CHECK(back.text == error.text);
  }
  CHECK(from_caf(caf::make_error(caf::sec::request_timeout), world.system).code ==
        ErrorCode::timeout);
  CHECK(from_caf(caf::make_error(caf::sec::request_receiver_down), world.system).code ==
        ErrorCode::peer_lost);
}
