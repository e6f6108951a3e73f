#include "planner/simulate.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "planner/schedules.h"
#include "planner/step_costs.h"
#include "tests/support/catch.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

Schedule pipeline(std::uint32_t stages, std::uint32_t microbatches) {
  return make_schedule(ScheduleKind::one_f_one_b, looped_stages(stages, microbatches)).value();
}

}  // namespace

TEST_CASE("two stages and two microbatches, by hand") {
  const Timeline timeline = simulate(pipeline(2, 2), [](const Action& action) {
    switch (action.op) {
      case Op::forward: return 1.0;
      case Op::backward: return 2.0;
      case Op::norm: return 0.25;
      case Op::update: return 0.5;
      default: return 0.5;  // transfers
    }
  });
  const auto at = [&](const char* text) {
    for (const Span& span : timeline.spans)
      if (to_string(span.action) == text) return std::pair{span.begin, span.end};
    FAIL("no span " << text);
    return std::pair{0.0, 0.0};
  };
  CHECK(at("F0.0") == std::pair{0.0, 1.0});
  CHECK(at("XF0.0") == std::pair{1.0, 1.5});
  CHECK(at("F1.0") == std::pair{1.5, 2.5});
  CHECK(at("B1.0") == std::pair{2.5, 4.5});
  CHECK(at("XB1.0") == std::pair{4.5, 5.0});
  CHECK(at("F1.1") == std::pair{4.5, 5.5});
  CHECK(at("B1.1") == std::pair{5.5, 7.5});
  CHECK(at("B0.0") == std::pair{5.0, 7.0});
  CHECK(at("B0.1") == std::pair{8.0, 10.0});
  CHECK(at("N0") == std::pair{10.0, 10.25});
  CHECK(at("N1") == std::pair{7.5, 7.75});
  CHECK(at("U1") == std::pair{10.25, 10.75});  // waits for N of every stage
  CHECK(timeline.makespan() == 10.75);
  CHECK(timeline.busy("d0") == 2 * 1 + 2 * 2 + 0.25 + 0.5);
  CHECK(timeline.busy("d0>d1") == 1.0);
}

TEST_CASE("a directed link sends one transfer at a time") {
  const Timeline timeline = simulate(pipeline(2, 6), [](const Action& action) {
    return action.op == Op::transfer_forward ? 5.0 : 1.0;
  });
  Seconds last = 0;
  for (const Span& span : timeline.spans)
    if (span.lane == "d0>d1") {
      CHECK(span.begin >= last);
      last = span.end;
    }
  CHECK(last == 1 + 6 * 5.0);
}

TEST_CASE("costs are sums over layers, overhead per action, bytes over bandwidth plus latency") {
  ClusterSpec cluster = cluster_of({1, 2});
  cluster.nodes.push_back({"n1", true});
  cluster.devices[1].node = NodeId{1};
  const StepCosts costs =
      step_costs(stages_of({3, 1}), cluster, small_model(2, true), round_profile(), DType::f32);
  CHECK(costs.stages[0].forward == Approx(2e-3 + 1e-5));
  CHECK(costs.stages[1].forward == Approx(0.5e-3));
  CHECK(costs.of({Op::backward, StageId{1}, MicrobatchId{0}}) == Approx(1e-3 + 1e-6));
  CHECK(costs.transfer_forward[0] == Approx(50e-6 + 8192 / 1e9));
  CHECK(costs.transfer_backward[1] == Approx(50e-6 + 8192 / 1e9));
  CHECK(costs.transfer_tied[1] == Approx(50e-6 + 65536 / 1e9));
}

TEST_CASE("an op is bound by its arithmetic or by memory") {
  DeviceRates rates;
  rates.matmul_f32 = 100;
  rates.matmul_bf16 = 200;
  rates.vector_f32 = 10;
  rates.memory = 1000;
  rates.launch = 0.5;
  CHECK(seconds_of(OpCount{1000, 10, 100, 2}, rates, DType::f32) == 10 + 1 + 2 * 0.5);
  CHECK(seconds_of(OpCount{1000, 10, 100, 2}, rates, DType::bf16) == 5 + 1 + 2 * 0.5);
  CHECK(seconds_of(OpCount{1000, 10, 50000, 2}, rates, DType::f32) == 50 + 2 * 0.5);
  CHECK(seconds_of(OpCount{}, DeviceRates{}, DType::f32) == 0);
}

TEST_CASE("links: the process border decides, exceptions beat it") {
  ClusterSpec cluster = cluster_of({1, 1, 1});
  cluster.nodes.push_back({"n1", true});
  cluster.nodes.push_back({"n2", false});
  cluster.devices[1].node = NodeId{1};
  cluster.devices[2].node = NodeId{2};
  CHECK(cluster.crosses_processes(DeviceId{0}, DeviceId{1}));
  CHECK_FALSE(cluster.crosses_processes(DeviceId{0}, DeviceId{2}));
  CHECK(cluster.link(DeviceId{0}, DeviceId{1}).bandwidth == 1e9);
  CHECK(cluster.link(DeviceId{0}, DeviceId{2}).bandwidth == 0);
  cluster.overrides[{0, 1}] = {1, 2};
  CHECK(cluster.link(DeviceId{0}, DeviceId{1}).latency == 1);
  CHECK(cluster.link(DeviceId{1}, DeviceId{0}).bandwidth == 1e9);
}

TEST_CASE("a Chrome trace has a process per timeline and a thread per lane") {
  const Timeline timeline = simulate(pipeline(2, 1), [](const Action&) { return 1.0; });
  const auto trace = nlohmann::json::parse(
      to_chrome_trace({{"planned", timeline}, {"played", timeline}}, {"v100", "t4"}));
  std::size_t spans = 0;
  std::vector<std::string> lanes;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") ++spans;
    if (event.at("name") == "thread_name" && event.at("pid") == 1)
      lanes.push_back(event.at("args").at("name"));
  }
  CHECK(spans == 2 * timeline.spans.size());
  CHECK(lanes == std::vector<std::string>{"v100", "t4", "v100 to t4", "t4 to v100"});
}
