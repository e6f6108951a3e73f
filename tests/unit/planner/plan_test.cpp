#include "planner/plan.h"

#include <algorithm>
#include <chrono>
#include <regex>
#include <set>

#include "planner/memory.h"
#include "planner/schedules.h"
#include "planner/simulate.h"
#include "planner/step_costs.h"
#include "tests/support/catch.h"
#include "tests/support/sanitizers.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

std::vector<std::uint32_t> sizes_of(const Plan& plan) {
  std::vector<std::uint32_t> sizes;
  for (const StagePlan& stage : plan.stages) sizes.push_back(stage.layers.size());
  return sizes;
}

void check_placed_once(const Plan& plan) {
  std::uint32_t next = 0;
  for (const StagePlan& stage : plan.stages) {
    CHECK(stage.layers.first == next);
    CHECK(stage.layers.last > next);
    next = stage.layers.last;
  }
  CHECK(next == layer_count(plan.model));
}

Plan made(const ModelSpec& model,
          const ClusterSpec& cluster,
          const ModelProfile& profile,
          const PlanOptions& options) {
  auto plan = make_plan(model, cluster, profile, options);
  if (!plan) FAIL(plan.error().text);
  check_placed_once(*plan);
  return *plan;
}

}  // namespace

TEST_CASE("L002 five blocks on four devices leave no device without a block") {
  const Plan plan =
      made(small_model(5), cluster_of({1, 1, 1, 1}), round_profile(0.01), options_of(16));
  std::vector<std::uint32_t> blocks;
  for (const StagePlan& stage : plan.stages) {
    const std::uint32_t ends = (stage.layers.holds(0) ? 1 : 0) + (stage.layers.holds(6) ? 1 : 0);
    blocks.push_back(stage.layers.size() - ends);
  }
  std::sort(blocks.begin(), blocks.end());
  CHECK(blocks == std::vector<std::uint32_t>{1, 1, 1, 2});
}

TEST_CASE("L002 three blocks on four devices leave one device unused, and say so") {
  // Embedding and head cost next to nothing, so a stage of their own would only be a longer way.
  ModelProfile profile = round_profile(0.0);
  profile.embedding.forward = profile.embedding.backward_weight = {};
  profile.embedding.backward_input = {};
  ClusterSpec cluster = cluster_of({1, 1, 1, 1});
  cluster.same_process.latency = 0;  // one more stage in flight would hide latency
  const Plan plan = made(small_model(3), cluster, profile, options_of(16));
  CHECK(plan.stages.size() == 3);
  REQUIRE(plan.unused.size() == 1);
  CHECK(std::any_of(plan.notes.begin(), plan.notes.end(), [](const PlanNote& note) {
    return note.kind == NoteKind::unused && note.text.rfind("dev", 0) == 0;
  }));
}

TEST_CASE("L004 a heavy head takes blocks off the last stage, pinned cuts stay as they are") {
  const ModelSpec model = small_model(24);
  const ClusterSpec cluster = cluster_of({1, 1, 1, 1});
  const Plan plan = made(model, cluster, round_profile(4.0), options_of(8));
  const auto sizes = sizes_of(plan);
  REQUIRE(sizes.size() == 4);
  CHECK(sizes[3] < sizes[1]);
  CHECK(sizes[3] < sizes[2]);
  PlanOptions options = options_of(8);
  options.pinned = stages_of({7, 6, 6, 7});
  CHECK(sizes_of(made(model, cluster, round_profile(4.0), options)) ==
        std::vector<std::uint32_t>{7, 6, 6, 7});
}

TEST_CASE("L006 activations in the plan are the live microbatches times their size") {
  PlanOptions options = options_of(8);
  options.pinned = stages_of({2, 1, 1, 1});
  const ModelProfile profile = round_profile();
  const Plan plan = made(small_model(3), cluster_of({1, 1, 1, 1}), profile, options);
  const Bytes saved = profile.block.saved_bytes;
  const Bytes input = profile.block.output_bytes;
  CHECK(plan.in_flight == std::vector<std::uint32_t>{4, 3, 2, 1});
  CHECK(plan.memory[0].activations == 4 * 2 * saved);
  CHECK(plan.memory[1].activations == 3 * (saved + input));
  CHECK(plan.memory[2].activations == 2 * (saved + input));
  CHECK(plan.memory[3].activations == 1 * (saved + input));
  options.schedule = ScheduleKind::gpipe;
  const Plan gpipe = made(small_model(3), cluster_of({1, 1, 1, 1}), profile, options);
  CHECK(gpipe.in_flight == std::vector<std::uint32_t>(4, 8));
  CHECK(gpipe.memory[3].activations == 8 * (saved + input));
}

TEST_CASE("L009 thirty blocks on four devices are all placed") {
  for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                                  ScheduleKind::interleaved, ScheduleKind::zero_bubble_h1}) {
    PlanOptions options = options_of(8, kind);
    options.chunks = 2;
    const Plan plan = made(small_model(30), cluster_of({1, 1, 1, 1}), round_profile(), options);
    CHECK(plan.stages.size() == (kind == ScheduleKind::interleaved ? 8 : 4));
  }
}

TEST_CASE("L010 pinned stages that do not add up are refused with both numbers") {
  const auto refused = [](std::vector<StagePlan> pinned) {
    PlanOptions options = options_of(4);
    options.pinned = std::move(pinned);
    const auto plan = make_plan(small_model(20), cluster_of({1, 1}), round_profile(), options);
    REQUIRE_FALSE(plan.ok());
    CHECK(plan.error().code == ErrorCode::invalid_input);
    return plan.error().text;
  };
  CHECK(refused({{{0, 1}, DeviceId{0}}}) ==
        "plan: pinned stages hold 1 of 22 layers (embedding, 20 blocks, head); 1 != 22");
  CHECK(refused({{{0, 10}, DeviceId{0}}, {{11, 22}, DeviceId{1}}}) ==
        "plan: pinned stage 1 holds layers [11, 22), but the next layer to be placed is 10; every "
        "layer is placed exactly once");
  CHECK(refused({{{0, 10}, DeviceId{0}}, {{9, 22}, DeviceId{1}}}).find("exactly once") !=
        std::string::npos);
  CHECK(refused({{{0, 22}, DeviceId{0}}, {{22, 22}, DeviceId{1}}}).find("holds no layer") !=
        std::string::npos);
  CHECK(refused({{{0, 22}, DeviceId{7}}}).find("there are 2 devices") != std::string::npos);
}

TEST_CASE("L014 L016 embedding alone and head alone are stages like any other") {
  PlanOptions options = options_of(4);
  options.pinned = stages_of({1, 4, 1});
  const Plan plan = made(small_model(4), cluster_of({1, 1, 1}), round_profile(), options);
  CHECK(plan.stages[0].layers == LayerRange{0, 1});
  CHECK(plan.stages[2].layers == LayerRange{5, 6});
  // A very heavy embedding gets a stage of its own without being told to.
  ModelProfile heavy = round_profile();
  heavy.embedding.forward.matmul_flops = 5e6;
  heavy.embedding.backward_weight.matmul_flops = 5e6;
  const Plan alone = made(small_model(4), cluster_of({1, 1, 1}), heavy, options_of(16));
  CHECK(alone.stages[0].layers == LayerRange{0, 1});
}

TEST_CASE("L018 a block moves away from a device whose memory is nearly full of weights") {
  const ModelProfile profile = round_profile();
  const ModelSpec model = small_model(6);
  ClusterSpec cluster = cluster_of({4, 1});
  const Plan roomy = made(model, cluster, profile, options_of(4));
  const auto fast = std::find_if(roomy.stages.begin(), roomy.stages.end(),
                                 [](const auto& s) { return s.device == DeviceId{0}; });
  cluster.devices[0].memory = roomy.memory[0].total() * 2 / 3;
  const Plan tight = made(model, cluster, profile, options_of(4));
  const auto less = std::find_if(tight.stages.begin(), tight.stages.end(),
                                 [](const auto& s) { return s.device == DeviceId{0}; });
  CHECK(less->layers.size() < fast->layers.size());
  CHECK(tight.memory[0].total() <= cluster.devices[0].memory);
}

TEST_CASE("L020 each device is held to its own memory") {
  ClusterSpec cluster = cluster_of({1, 1, 1});
  cluster.nodes.push_back({"n1", true});
  cluster.devices[2].node = NodeId{1};
  const ModelProfile profile = round_profile();
  cluster.devices[0].memory = 8_MiB;
  cluster.devices[1].memory = 4_MiB;
  cluster.devices[2].memory = 4_MiB;
  const Plan plan = made(small_model(16), cluster, profile, options_of(4));
  CHECK(plan.stages.size() == 3);
  for (std::size_t d = 0; d < 3; ++d) CHECK(plan.memory[d].total() <= cluster.devices[d].memory);
}

TEST_CASE("L026 ninety-six blocks on sixteen devices are planned within a second") {
  ClusterSpec cluster = cluster_of({1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3});
  const ModelProfile profile = round_profile(2.0);
  const auto begin = std::chrono::steady_clock::now();
  const Plan plan = made(small_model(96), cluster, profile, options_of(32));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  INFO("planned in " << took.count() << " s, step " << plan.predicted_step);
  CHECK(took.count() < (test::address_sanitizer || test::thread_sanitizer ? 20.0 : 1.0));
  // Three layers a unit of speed place 6 x 3 + 5 x 6 + 5 x 9 = 93 of 98 layers, so some fast device
  // holds ten: 10 ms a microbatch, over 32 microbatches and 15 stages of fill and drain.
  CHECK(plan.predicted_step < 10e-3 * (32 + 15));
}

TEST_CASE("memory: a cap at the prediction works, one byte less is refused") {
  for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                                  ScheduleKind::interleaved, ScheduleKind::zero_bubble_h1}) {
    PlanOptions options = options_of(4, kind);
    options.pinned = {{{0, 3}, DeviceId{0}}, {{3, 5}, DeviceId{1}}, {{5, 8}, DeviceId{0}}};
    ClusterSpec cluster = cluster_of({1, 1});
    cluster.nodes.push_back({"n1", true});
    cluster.devices[1].node = NodeId{1};
    const ModelSpec model = small_model(6, true);
    const ModelProfile profile = round_profile(1.0, true);
    const Plan plan = made(model, cluster, profile, options);
    for (std::size_t d = 0; d < 2; ++d) {
      ClusterSpec capped = cluster;
      capped.devices[d].memory = plan.memory[d].total();
      CHECK(make_plan(model, capped, profile, options).ok());
      capped.devices[d].memory -= 1;
      const auto refused = make_plan(model, capped, profile, options);
      REQUIRE_FALSE(refused.ok());
      CHECK(refused.error().code == ErrorCode::does_not_fit);
      const std::string& text = refused.error().text;
      CHECK(text.find("dev" + std::to_string(d) + " needs") != std::string::npos);
      CHECK(text.find(std::to_string(plan.memory[d].total()) + " bytes") != std::string::npos);
      CHECK(text.find("short by 1 bytes") != std::string::npos);
      CHECK(text.find("would fit") != std::string::npos);
    }
  }
}

TEST_CASE("L022 devices that hold 60 % of a model: refused before the launch, with the shortfall") {
  const ModelSpec model = small_model(12);
  const ModelProfile profile = round_profile();
  const PlanOptions options = options_of(4);
  const Bytes whole = made(model, cluster_of({1}), profile, options).memory[0].total();
  ClusterSpec cluster = cluster_of({1, 1, 1}, whole / 5);
  const auto refused = make_plan(model, cluster, profile, options);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::does_not_fit);
  INFO(refused.error().text);
  // What the text says adds up: it needs what it has and what it is short by.
  std::smatch numbers;
  REQUIRE(std::regex_search(
      refused.error().text, numbers,
      std::regex(
          "needs [^(]*\\((\\d+) bytes\\) and has [^(]*\\((\\d+) bytes\\), short by (\\d+) bytes")));
  CHECK(std::stoull(numbers[2]) == whole / 5);
  CHECK(std::stoull(numbers[1]) == std::stoull(numbers[2]) + std::stoull(numbers[3]));
  // With as much again there is a plan.
  for (DeviceSpec& device : cluster.devices) device.memory = whole / 2;
  CHECK(make_plan(model, cluster, profile, options).ok());
}

TEST_CASE("memory of the edges: receive slots between processes, gradients, halves of the table") {
  ClusterSpec cluster = cluster_of({1, 1, 1});
  cluster.nodes.push_back({"n1", true});
  cluster.devices[2].node = NodeId{1};
  StageMap map;  // 0 and 1 read each other's tensors in place, 2 is in another process
  map.device_of_stage = {DeviceId{0}, DeviceId{1}, DeviceId{2}};
  map.device_count = 3;
  map.tied = true;
  map.transfer_slots = 3;
  CHECK(edge_buffers(StageId{0}, map, cluster) == EdgeBuffers{0, 0, 0, 1});
  CHECK(edge_buffers(StageId{1}, map, cluster) == EdgeBuffers{0, 3, 6, 0});
  CHECK(edge_buffers(StageId{2}, map, cluster) == EdgeBuffers{3, 0, 3, 1});
  map.tied = false;
  CHECK(edge_buffers(StageId{2}, map, cluster) == EdgeBuffers{3, 0, 3, 0});
  // 256 x 64 x 4 bytes.
  CHECK(token_table_bytes(small_model(1)) == 65536);
  CHECK(edge_bytes({3, 0, 3, 1}, small_model(1), round_profile()) == 6 * 8192 + 65536);
}

TEST_CASE("tied ends on one stage hold one table, on two stages two and a half to receive") {
  const ModelSpec model = small_model(2, true);
  const ModelProfile profile = round_profile(1.0, true);
  PlanOptions options = options_of(1);
  options.pinned = stages_of({4});
  const Plan together = made(model, cluster_of({1}), profile, options);
  options.pinned = stages_of({2, 2});
  const Plan apart = made(model, cluster_of({1, 1}), profile, options);
  const auto sum = [](const Plan& plan, Bytes MemoryPlan::*part) {
    Bytes bytes = 0;
    for (const MemoryPlan& memory : plan.memory) bytes += memory.*part;
    return bytes;
  };
  CHECK(sum(apart, &MemoryPlan::weights) ==
        sum(together, &MemoryPlan::weights) + profile.head.shared_weight_bytes);
  CHECK(sum(apart, &MemoryPlan::optimizer) ==
        sum(together, &MemoryPlan::optimizer) + profile.head.shared_optimizer_bytes);
  CHECK(sum(apart, &MemoryPlan::gradients) == sum(together, &MemoryPlan::gradients));
  CHECK(sum(apart, &MemoryPlan::transfer) ==
        2 * token_table_bytes(model) + 2 * options.transfer_slots * boundary_bytes(profile));
}

TEST_CASE("a refusal names the nearest change that would fit") {
  const ModelSpec model = small_model(6);
  const ModelProfile profile = round_profile();
  ClusterSpec cluster = cluster_of({1, 1});
  const Plan one_f_one_b = made(model, cluster, profile, options_of(16));
  for (std::size_t d = 0; d < 2; ++d)
    cluster.devices[d].memory =
        std::max(one_f_one_b.memory[0].total(), one_f_one_b.memory[1].total());
  PlanOptions options = options_of(16, ScheduleKind::gpipe);
  options.shape.microbatch_size = 1;
  options.shape.batch_size = 16;
  const auto refused = make_plan(model, cluster, profile, options);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().text.find("schedule = \"1f1b\" would fit") != std::string::npos);
  // Weights alone are too much: only memory helps.
  for (DeviceSpec& device : cluster.devices) device.memory = 64_KiB;
  const auto hopeless = make_plan(model, cluster, profile, options_of(2));
  REQUIRE_FALSE(hopeless.ok());
  CHECK(hopeless.error().text.find("; memory of dev") != std::string::npos);
  CHECK(hopeless.error().text.find("microbatch_size") == std::string::npos);
}

TEST_CASE("the change that a refusal offers fits when it is made") {
  const ModelSpec model = small_model(6);
  const auto profile_at = [](const StepShape& shape) {
    return round_profile(shape.microbatch_size);
  };
  PlanOptions options = options_of(4);
  options.shape.microbatch_size = 4;
  options.shape.batch_size = 16;
  const std::regex device("(dev[0-9]+) at least ([0-9]+) KiB");
  for (const Bytes memory : {8_KiB, 64_KiB, 200_KiB, 1_MiB}) {
    ClusterSpec cluster = cluster_of({1, 2, 1});
    for (DeviceSpec& d : cluster.devices) d.memory = memory;
    const auto refused = make_plan(model, cluster, profile_at(options.shape), options, profile_at);
    if (refused) continue;
    const std::string text = refused.error().text;
    INFO(text);
    ClusterSpec larger = cluster;
    std::size_t named = 0;
    for (auto at = std::sregex_iterator(text.begin(), text.end(), device);
         at != std::sregex_iterator(); ++at, ++named)
      for (DeviceSpec& d : larger.devices)
        if (d.name == (*at)[1].str()) d.memory = std::stoull((*at)[2].str()) * 1_KiB;
    CHECK(named > 0);
    CHECK(make_plan(model, larger, profile_at(options.shape), options).ok());
    std::smatch smaller;
    if (!std::regex_search(text, smaller, std::regex("microbatches = ([0-9]+) \\(of ([0-9]+)\\)")))
      continue;
    PlanOptions taken = options;
    taken.shape.microbatch_count = static_cast<std::uint32_t>(std::stoul(smaller[1].str()));
    taken.shape.microbatch_size = static_cast<std::uint32_t>(std::stoul(smaller[2].str()));
    CHECK(make_plan(model, cluster, profile_at(taken.shape), taken).ok());
  }
}

TEST_CASE("faster devices get more layers, useless ones none") {
  const Plan plan =
      made(small_model(12), cluster_of({1, 3, 0.001}), round_profile(0.01), options_of(16));
  REQUIRE(plan.stages.size() == 2);
  CHECK(plan.unused == std::vector<DeviceId>{DeviceId{2}});
  for (const StagePlan& stage : plan.stages)
    CHECK(stage.layers.size() > (stage.device == DeviceId{1} ? 8u : 2u));
}

TEST_CASE("the predicted step is the simulated one, and the timeline is kept") {
  const ClusterSpec cluster = cluster_of({1, 2});
  const Plan plan = made(small_model(4), cluster, round_profile(), options_of(4));
  CHECK(plan.predicted_step == plan.timeline.makespan());
  CHECK(plan.predicted_step == simulate(plan.schedule, step_costs(plan.stages, cluster, plan.model,
                                                                  round_profile(), DType::f32))
                                   .makespan());
}

TEST_CASE("measured seconds beat the rates") {
  DeviceSpec device = cluster_of({1}).devices[0];
  const ModelProfile profile = round_profile();
  CHECK(layer_seconds(device, profile.block, DType::f32).forward == Approx(1e-3));
  device.measured[LayerKind::block] = {5, 6, 7, 8, 9};
  CHECK(layer_seconds(device, profile.block, DType::f32).backward_weight == 7);
}

TEST_CASE("times of microbatches between two that were measured lie on the line between them") {
  const SecondsBySize known{{2, {2, 4, 6, 8, 10}}, {6, {4, 4, 10, 8, 6}}};
  const LayerSeconds middle = seconds_at(known, 3);
  CHECK(middle.forward == Approx(2.5));
  CHECK(middle.backward_input == Approx(4));
  CHECK(middle.backward_weight == Approx(7));
  CHECK(middle.norm == Approx(8));
  CHECK(middle.update == Approx(9));
  CHECK(seconds_at(known, 6).forward == 4);
  // Beyond the ends, work per microbatch is in proportion; the optimizer's does not depend on it.
  CHECK(seconds_at(known, 1).forward == Approx(1));
  CHECK(seconds_at(known, 12).backward_weight == Approx(20));
  CHECK(seconds_at(known, 12).update == 6);
}

TEST_CASE("a request that cannot be is refused before any search") {
  const ModelProfile profile = round_profile();
  CHECK_FALSE(make_plan(small_model(2), {}, profile, options_of(1)).ok());
  CHECK_FALSE(make_plan(small_model(2), cluster_of({1}), profile, options_of(0)).ok());
  PlanOptions options = options_of(2, ScheduleKind::interleaved);
  options.chunks = 5;
  const auto plan = make_plan(small_model(2), cluster_of({1}), profile, options);
  REQUIRE_FALSE(plan.ok());
  CHECK(plan.error().text.find("the most is 4") != std::string::npos);
}
