// What nodes are told about a run comes back as it was; child processes end and are quoted.
#include <signal.h>

#include <limits>

#include "actors/node_process.h"
#include "actors/run_spec_json.h"
#include "actors/shard_text.h"
#include "tests/support/catch.h"

using namespace troupe;

namespace {

RunSpec rich_spec() {
  RunSpec spec;
  spec.name = "name";
  spec.steps = (std::uint64_t{1} << 53) + 1;  // beyond what a double holds
  spec.seed = ~std::uint64_t{0};
  spec.model = {ModelFamily::llama, 4, 64, 4, 2, 96, 256, 32, false};
  spec.model.norm_epsilon = 1e-5 / 3;
  spec.model.dropout = std::numeric_limits<double>::denorm_min();
  spec.shape = {3, 2, 16, 5, DType::bf16};
  spec.optimizer.beta2 = 0.1 + 0.2;
  spec.learning_rate = {LearningRateShape::linear, 1.0 / 3, 1e-300, 7, 9};
  spec.data.files = {"a b", "\xc3\xa9\n\""};
  spec.cluster.nodes = {{"n0", false}, {"n1", true}};
  spec.cluster.devices.resize(2);
  spec.cluster.devices[1].node = NodeId{1};
  spec.cluster.devices[1].kind = DeviceKind::emulated;
  spec.cluster.devices[1].measured[LayerKind::head] = {1.0 / 7, 2, 3, 4, 5};
  spec.cluster.devices[1].measured_by_size[LayerKind::head] = {{1, {1.0 / 9, 2, 3, 4, 5}},
                                                               {8, {6, 7, 8, 9, 1.0 / 11}}};
  spec.cluster.overrides[{1, 0}] = {1.0 / 3, 1e9};
  spec.cluster.disturbances.push_back({DeviceId{1}, DeviceId{0}, 1.0 / 3, 20});
  spec.cluster.copy_between_devices = true;
  spec.joining_nodes = {NodeId{1}};
  spec.plan.pinned = {{{0, 3}, DeviceId{1}}, {{3, 6}, DeviceId{0}}};
  spec.plan.schedule = ScheduleKind::zero_bubble_h1;
  spec.plan.choose_microbatches = true;
  spec.plan.choose_recompute = true;
  spec.request_timeout = 1.0 / 3;
  spec.join_timeout = 2.0 / 3;
  return spec;
}

}  // namespace

TEST_CASE("a run's description comes back with the same bits") {
  const RunSpec spec = rich_spec();
  const std::string text = to_json(spec);
  const auto back = run_spec_from_json(text);
  REQUIRE(back.ok());
  CHECK(to_json(*back) == text);
  CHECK(back->steps == spec.steps);
  CHECK(back->seed == spec.seed);
  CHECK(back->model == spec.model);
  CHECK(back->optimizer.beta2 == spec.optimizer.beta2);
  CHECK(back->learning_rate.learning_rate == spec.learning_rate.learning_rate);
  CHECK(back->data.files == spec.data.files);
  CHECK(back->cluster.devices[1].measured.at(LayerKind::head).forward == 1.0 / 7);
  const SecondsBySize& by_size = back->cluster.devices[1].measured_by_size.at(LayerKind::head);
  CHECK(by_size.at(1).forward == 1.0 / 9);
  CHECK(by_size.at(8).update == 1.0 / 11);
  CHECK(back->cluster.link(DeviceId{1}, DeviceId{0}).latency == 1.0 / 3);
  CHECK(back->plan.choose_microbatches);
  CHECK_FALSE(back->plan.choose_schedule);
  CHECK(back->plan.choose_recompute);
  CHECK(back->cluster.disturbances == spec.cluster.disturbances);
  CHECK(back->cluster.disturbed(DeviceId{1}, DeviceId{0}, 20) == 1.0 / 3);
  CHECK(back->cluster.disturbed(DeviceId{1}, DeviceId{0}, 19) == 1);
  CHECK(back->plan.pinned == spec.plan.pinned);
}

TEST_CASE("a damaged description is refused") {
  const std::string text = to_json(rich_spec());
  for (const std::string& wrong :
       {std::string(), text.substr(0, text.size() / 2), std::string("[]"), std::string("{}")}) {
    const auto back = run_spec_from_json(wrong);
    REQUIRE_FALSE(back.ok());
    CHECK(back.error().code == ErrorCode::protocol);
  }
  CHECK_FALSE(measured_from_json("[[1,2]]").ok());
}

TEST_CASE("what a node measured comes back by device, kind of layer and microbatch size") {
  MeasuredDevices measured;
  measured[3][LayerKind::block] = {{1, {1.0 / 3, 2, 3, 4, 5}}, {16, {6, 7, 8, 9, 1.0 / 7}}};
  measured[4][LayerKind::head] = {{2, {1, 1, 1, 1, 1}}};
  const auto back = measured_from_json(to_json(measured));
  REQUIRE(back.ok());
  CHECK(to_json(*back) == to_json(measured));
  CHECK(back->at(3).at(LayerKind::block).at(1).forward == 1.0 / 3);
  CHECK(back->at(3).at(LayerKind::block).at(16).update == 1.0 / 7);
  CHECK(back->at(4).size() == 1);
}

TEST_CASE("records of shards come back from their text") {
  const FileRecord record{"model-00001-of-00002.safetensors", ~std::uint64_t{0}, "0123abcd"};
  const auto back = parse_shard_text(shard_text(record));
  REQUIRE(back.ok());
  CHECK(*back == record);
  for (const char* wrong : {"", "12", "12 abc", "x abc name", "12x abc name"})
    CHECK_FALSE(parse_shard_text(wrong).ok());
}

TEST_CASE("a child process ends, says how, and is quoted by its last lines") {
  auto child = NodeProcess::start(
      "/bin/sh", {"-c", "for i in 1 2 3 4 5; do echo line $i; done; exit 3"}, "n1");
  REQUIRE(child.ok());
  REQUIRE(child->wait(20));
  CHECK(*child->ended() == "exit status 3");
  CHECK(child->last_lines(2) == "line 4\nline 5");
  auto killed = NodeProcess::start("/bin/sh", {"-c", "kill -9 $$"}, "n2");
  REQUIRE(killed.ok());
  REQUIRE(killed->wait(20));
  CHECK(killed->ended()->find("signal 9") == 0);
  auto missing = NodeProcess::start("/no/such/program", {}, "n3");
  REQUIRE(missing.ok());
  REQUIRE(missing->wait(20));
  CHECK(*missing->ended() == "exit status 127");
}

TEST_CASE("a child that is dropped is killed with its group") {
  pid_t pid = 0;
  {
    auto child = NodeProcess::start("/bin/cat", {"/dev/zero"}, "n1");
    REQUIRE(child.ok());
    pid = child->pid();
    CHECK(kill(pid, 0) == 0);
    CHECK_FALSE(child->ended());
  }
  CHECK(kill(pid, 0) != 0);
}
