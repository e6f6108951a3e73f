#include "planner/layout_step.h"

#include <algorithm>

#include "planner/idle.h"
#include "tests/support/catch.h"
#include "tests/support/published_models.h"

using namespace troupe;

namespace {

ArchitectureRun run_of(const char* name, double sequence = 4096) {
  return {published::published_model(TROUPE_SOURCE_DIR "/tests/data", name), sequence};
}

TrainingCluster h100s() {
  TrainingCluster out;
  out.device = h100_rates();
  return out;
}

Layout layout_of(std::uint64_t tensor, std::uint64_t pipeline, std::uint64_t data) {
  Layout out;
  out.tensor = tensor;
  out.pipeline = pipeline;
  out.data = data;
  out.batch = 16 * data;
  out.sequence_parallel = tensor > 1;
  out.flash_attention = out.causal = true;
  return out;
}

Seconds played(const LayoutStep& step) {
  return simulate(step.schedule, step.costs).makespan();
}

}  // namespace

TEST_CASE("a layout's step lasts as long when it is played as its closed form says") {
  const char* name = GENERATE("llama-3-8b", "gpt2-medium", "mixtral-8x7b");
  const ArchitectureRun run = run_of(name, 1024);
  const std::uint64_t pipeline = GENERATE(1u, 2u, 4u);
  // Blocks divide evenly: 32 and 24.
  Layout layout = layout_of(1, pipeline, 2);
  layout.chunks = pipeline > 1 ? GENERATE(1u, 2u) : 1;
  layout.zero = GENERATE(ZeroStage::none, ZeroStage::optimizer);
  layout.recompute = GENERATE(Recompute::none, Recompute::full);
  CAPTURE(name, pipeline, layout.chunks);
  const StepSeconds closed = step_seconds(run, layout, {}, h100s());
  const Seconds step = played(layout_step(run, layout, {}, h100s()));
  // In the closed form a device does nothing else while it sends.
  CHECK(step < 1.01 * closed.total());
  CHECK(step > 0.99 * closed.total() - closed.transfer);
  TrainingCluster near = h100s();
  near.net.transfer_start = 0;
  near.net.intra = near.net.node = 1e18;
  const StepSeconds alone = step_seconds(run, layout, {}, near);
  CHECK(played(layout_step(run, layout, {}, near)) == Approx(alone.total()).epsilon(0.01));
}

TEST_CASE("sharded layers are played in as long as their own simulation takes") {
  const ArchitectureRun run = run_of("llama-3-8b");
  Layout layout = layout_of(1, 1, 16);
  layout.zero = ZeroStage::parameters;
  const LayoutStep step = layout_step(run, layout, {}, h100s());
  CHECK(played(step) == Approx(step_seconds(run, layout, {}, h100s()).total()).epsilon(1e-9));
  CHECK(step.notes.front().find("gathering") != std::string::npos);
}

TEST_CASE("stages that divide unevenly are played shorter than the closed form, never longer") {
  const ArchitectureRun run = run_of("llama-3.1-405b");  // 126 blocks
  const Layout layout = layout_of(8, 16, 1);
  const LayoutStep step = layout_step(run, layout, {}, h100s());
  CHECK(step.stages.front().layers == LayerRange{0, 8});  // embedding and 7 blocks
  CHECK(step.stages[1].layers == LayerRange{8, 15});
  CHECK(step.stages.back().layers == LayerRange{119, 128});  // 8 blocks and the head
  const Seconds closed = step_seconds(run, layout, {}, h100s()).total();
  CHECK(played(step) < closed);
  CHECK(played(step) > 0.9 * closed);
}

TEST_CASE("the fullest stage holds what the closed form says") {
  const ArchitectureRun run = run_of("llama-3-8b");  // two tables of one size
  Layout layout = layout_of(2, 4, 2);
  layout.zero = GENERATE(ZeroStage::none, ZeroStage::optimizer);
  layout.recompute = GENERATE(Recompute::none, Recompute::full);
  const LayoutStep step = layout_step(run, layout, {}, h100s());
  REQUIRE(step.bytes.size() == 4);
  double most = 0;
  for (const StepBytes& bytes : step.bytes) most = std::max(most, bytes.total());
  // The last norm is the head's; its gain is a row of the table.
  CHECK(most == Approx(step_bytes(run, layout, {}).total()).epsilon(1e-5));
  // A stage further on holds one microbatch less.
  CHECK(step.bytes[0].activations == Approx(2 * step.bytes[2].activations));
}

TEST_CASE("a device computes its stages for every microbatch, and idles for a reason") {
  const ArchitectureRun run = run_of("mixtral-8x7b");
  const Layout layout = layout_of(1, 4, 8);
  const LayoutStep step = layout_step(run, layout, {}, h100s());
  const Timeline timeline = simulate(step.schedule, step.costs);
  const auto use = device_use(step.schedule, timeline);
  const BlockSeconds block = block_seconds(run, 0, layout, {}, h100s());
  const LayerSeconds& inner = step.costs.stages[1];
  CHECK(inner.forward == Approx(8 * block.forward));
  CHECK(inner.backward_input == Approx(8 * block.backward));
  CHECK(use[1].busy ==
        Approx(16 * 8 * (block.forward + block.backward) + inner.norm + inner.update));
  CHECK(use[3].idle_for(IdleReason::fill) > use[1].idle_for(IdleReason::fill));
  for (const DeviceUse& one : use) CHECK(one.busy + one.idle_sum() == Approx(timeline.makespan()));
}

TEST_CASE("a send of a layout takes latency and bytes over its link") {
  const ArchitectureRun run = run_of("llama-3-8b");
  const LayoutStep step = layout_step(run, layout_of(2, 4, 2), {}, h100s());
  CHECK(step.boundary == 2 * 4096 * 4096);
  CHECK(step.costs.transfer_forward[0] ==
        Approx(step.link.latency + step.boundary / step.link.bandwidth));
  CHECK(step.costs.transfer_forward[3] == 0);
  CHECK(step.costs.transfer_backward[0] == 0);
}
