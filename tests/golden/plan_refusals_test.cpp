/// What `make_plan` says to requests that cannot be planned: tests/golden/data/plan_refusals.txt.
/// To write it anew after a change that is meant, run with "[.write-refusals]".
#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>

#include "planner/plan.h"
#include "tests/support/catch.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

struct Request {
  ModelSpec model = small_model(6);
  ClusterSpec cluster = cluster_of({1, 2, 1});
  PlanOptions options = options_of(4);
};

struct Case {
  const char* name;
  std::function<void(Request&)> spoil;
};

const Case cases[] = {
    {"no device", [](Request& r) { r.cluster.devices.clear(); }},
    {"a device on no node", [](Request& r) { r.cluster.devices[1].node = NodeId{3}; }},
    {"no memory", [](Request& r) { r.cluster.devices[1].memory = 0; }},
    {"no rates", [](Request& r) { r.cluster.devices[2].rates = {}; }},
    {"a negative rate", [](Request& r) { r.cluster.devices[0].rates.memory = -1; }},
    {"a rate that is not a number",
     [](Request& r) { r.cluster.devices[0].rates.vector_f32 = std::nan(""); }},
    {"no bf16",
     [](Request& r) {
       r.options.shape.compute = DType::bf16;
       r.cluster.devices[1].rates.matmul_bf16 = 0;
     }},
    {"a negative measured time",
     [](Request& r) {
       r.cluster.devices[0].measured[LayerKind::block] = {-1, 1, 1, 1, 1};
     }},
    {"an endless launch",
     [](Request& r) {
       r.cluster.devices[0].rates.launch = std::numeric_limits<double>::infinity();
     }},
    {"a negative latency", [](Request& r) { r.cluster.same_process.latency = -1e-6; }},
    {"disconnected processes",
     [](Request& r) {
       r.cluster.nodes.push_back({"n1", true});
       r.cluster.devices[2].node = NodeId{1};
       r.cluster.between_processes.latency = std::numeric_limits<double>::infinity();
     }},
    {"a disconnected link",
     [](Request& r) {
       r.cluster.nodes.push_back({"n1", true});
       r.cluster.devices[2].node = NodeId{1};
       r.cluster.overrides[{0, 2}] = {1e-6, 0};
     }},
    {"a link to nowhere",
     [](Request& r) {
       r.cluster.overrides[{0, 7}] = {1e-6, 1e9};
     }},
    {"no microbatch", [](Request& r) { r.options.shape.microbatch_count = 0; }},
    {"more chunks than layers",
     [](Request& r) {
       r.options.schedule = ScheduleKind::interleaved;
       r.options.chunks = 9;
     }},
    {"a model that fits nowhere",
     [](Request& r) {
       for (DeviceSpec& device : r.cluster.devices) device.memory = 64_KiB;
     }},
    {"devices that are too small",
     [](Request& r) {
       for (DeviceSpec& device : r.cluster.devices) device.memory = 1200_KiB;
     }},
    {"computing activations again would fit",
     [](Request& r) {
       r.options = options_of(16, ScheduleKind::gpipe);
       for (DeviceSpec& device : r.cluster.devices) device.memory = 3_MiB;
     }},
    {"another schedule would fit",
     [](Request& r) {
       r.options = options_of(16, ScheduleKind::gpipe);
       r.options.recompute = Recompute::full;
       for (DeviceSpec& device : r.cluster.devices) device.memory = 2500_KiB;
     }},
};

std::string text_of_all() {
  std::string text;
  for (const Case& one : cases) {
    Request request;
    one.spoil(request);
    const auto plan = make_plan(request.model, request.cluster, round_profile(), request.options);
    text += fmt::format("# {}\n{}\n", one.name, plan ? "fits" : plan.error().text);
  }
  return text;
}

const std::string path = TROUPE_SOURCE_DIR "/tests/golden/data/plan_refusals.txt";

}  // namespace

TEST_CASE("requests that cannot be planned are refused as the golden text says") {
  std::ifstream file(path);
  REQUIRE(file.good());
  const std::string golden{std::istreambuf_iterator<char>(file), {}};
  CHECK(text_of_all() == golden);
  CHECK(golden.find("\nfits\n") == std::string::npos);
}

TEST_CASE("write the golden refusals", "[.write-refusals]") {
  std::ofstream(path) << text_of_all();
}
