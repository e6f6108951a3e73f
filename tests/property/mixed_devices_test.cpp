// Unlike devices in one plan, priced from the catalogue: in memory, and no slower than any of them.
#include <algorithm>
#include <limits>

#include "apps/device_catalogue.h"
#include "kernels/stage.h"
#include "planner/plan.h"
#include "tests/support/catch.h"

using namespace troupe;

namespace {

DeviceSpec device_of(const std::string& id, std::uint32_t node) {
  for (const CatalogueDevice& one : built_in_catalogue().accelerators) {
    if (one.id != id) continue;
    DeviceSpec device;
    device.name = "n" + std::to_string(node) + "." + id;
    device.node = NodeId{node};
    device.memory = one.memory;
    device.rates = achievable_rates(one, 10e-6, 1);
    return device;
  }
  FAIL("no " << id << " in the catalogue");
  return {};
}

/// A node with a V100, one with two 3090, one with an A100, one with a processor alone.
ClusterSpec cluster() {
  ClusterSpec made;
  made.nodes = {{"n0", true}, {"n1", true}, {"n2", true}, {"n3", true}};
  made.devices = {device_of("v100_pcie_16", 0), device_of("rtx3090_24", 1),
                  device_of("rtx3090_24", 1), device_of("a100_pcie_40", 2)};
  made.devices[2].name += "b";
  DeviceSpec processor = made.devices[0];
  processor.name = "n3.cpu";
  processor.node = NodeId{3};
  processor.memory = 64_GiB;
  processor.rates.matmul_f32 = processor.rates.matmul_bf16 = 1e12;
  processor.rates.vector_f32 = 1e11;
  processor.rates.memory = 1e11;
  made.devices.push_back(processor);
  made.same_process = {10e-6, 1e10};
  made.between_processes = {50e-6, 1e9};
  return made;
}

ClusterSpec only(const ClusterSpec& all, const std::vector<std::size_t>& kept) {
  ClusterSpec part = all;
  part.devices.clear();
  for (const std::size_t d : kept) part.devices.push_back(all.devices[d]);
  return part;
}

}  // namespace

TEST_CASE("L028 a V100, two 3090, an A100 and a processor: in memory, as fast as any one kind") {
  ModelSpec model;
  model.blocks = 24;
  model.width = 1024;
  model.heads = model.kv_heads = 16;
  model.ffn_width = 4096;
  model.vocabulary = 50257;
  model.context = 1024;
  const ClusterSpec all = cluster();
  for (const ScheduleKind schedule : {ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble_h1}) {
    PlanOptions options;
    options.shape = {8, 4, 1024, 32, DType::f32};
    options.schedule = schedule;
    const ModelProfile profile = profile_model(model, options.shape);
    const auto plan = make_plan(model, all, profile, options);
    if (!plan) FAIL(plan.error().text);
    CHECK(plan->stages.size() > 1);
    for (std::size_t d = 0; d < all.devices.size(); ++d) {
      INFO(all.devices[d].name);
      CHECK(plan->memory[d].total() <= all.devices[d].memory);
    }
    Seconds best = std::numeric_limits<Seconds>::infinity();
    for (const auto& kind : std::vector<std::vector<std::size_t>>{{0}, {1, 2}, {3}, {4}})
      if (const auto alone = make_plan(model, only(all, kind), profile, options))
        best = std::min(best, alone->predicted_step);
    REQUIRE(best < std::numeric_limits<Seconds>::infinity());
    CHECK(plan->predicted_step <= best);
  }
}
