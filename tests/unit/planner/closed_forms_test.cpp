#include "planner/closed_forms.h"

#include "planner/schedules.h"
#include "planner/simulate.h"
#include "tests/support/catch.h"

using namespace troupe;

namespace {

/// Idle seconds of the first device under a schedule on equal stages.
double simulated_bubble(ScheduleKind kind,
                        std::uint32_t stages,
                        std::uint32_t microbatches,
                        std::uint32_t chunks,
                        const StageSeconds& seconds) {
  StageMap map;
  for (std::uint32_t s = 0; s < stages * chunks; ++s)
    map.device_of_stage.push_back(DeviceId{s % stages});
  map.device_count = stages;
  map.microbatch_count = microbatches;
  const Timeline timeline = simulate(make_schedule(kind, map).value(), [&](const Action& action) {
    if (action.op == Op::forward) return seconds.forward / chunks;
    if (action.op == Op::backward) return seconds.backward / chunks;
    if (action.op == Op::backward_input) return (seconds.backward - seconds.weight) / chunks;
    return action.op == Op::backward_weight ? seconds.weight / chunks : 0.0;
  });
  return timeline.makespan() - timeline.busy("d0");
}

}  // namespace

TEST_CASE("activations of a block: parts that tensor and sequence parallelism cut") {
  const GptShape shape{1, 12288, 96, 2048, 51200};  // 175 billion parameters
  const double unit = 2048.0 * 12288;
  CHECK(block_activation_bytes(shape, 1, {}) == Approx(unit * (34 + 80)));
  CHECK(block_activation_bytes(shape, 1, {8, false, Recompute::none}) ==
        Approx(unit * (10 + 3 + 10)));
  CHECK(block_activation_bytes(shape, 1, {8, true, Recompute::none}) ==
        Approx(unit * (34 + 80) / 8));
  CHECK(block_activation_bytes(shape, 1, {8, true, Recompute::selective}) == Approx(unit * 34 / 8));
  CHECK(block_activation_bytes(shape, 2, {8, true, Recompute::full}) == Approx(4 * unit));
  CHECK(first_stage_blocks(96, 8) == 96);
  CHECK(first_stage_blocks(96, 8, 3) == Approx(96 * (1 + 7.0 / 24)));
}

TEST_CASE("parameters and flops of GPT-3") {
  const GptShape shape{96, 12288, 96, 2048, 51200};
  CHECK(gpt_parameters(shape) == Approx(174.6e9).epsilon(0.001));
  const double model = gpt_step_flops(shape, 1, Recompute::none);
  CHECK(model == Approx(6 * 2048 * gpt_parameters(shape)).epsilon(0.03));
  CHECK(gpt_step_flops(shape, 1, Recompute::full) / model == Approx(4.0 / 3).epsilon(0.01));
  // 1 + s / (6 h), of the attention that is done again
  CHECK(gpt_step_flops(shape, 1, Recompute::selective) / model ==
        Approx(1 + 2048 / (6 * 12288.0)).epsilon(0.001));
  // Narayanan et al. 2021, section 5.1: 300 billion tokens on 1024 A100 at 140 Tflop/s: 34 days
  CHECK(training_seconds(300e9, 175e9, 1024, 140e12) / 86400 == Approx(34).epsilon(0.01));
}

TEST_CASE("closed bubbles are those of the schedules") {
  const StageSeconds seconds{1, 2, 1, 3};
  for (const std::uint32_t p : {2u, 3u, 4u, 8u}) {
    const std::uint32_t m = 4 * p;
    INFO("stages " << p);
    CHECK(simulated_bubble(ScheduleKind::one_f_one_b, p, m, 1, seconds) ==
          Approx(bubble_1f1b(p, seconds)));
    CHECK(simulated_bubble(ScheduleKind::gpipe, p, m, 1, seconds) ==
          Approx(bubble_1f1b(p, seconds)));
    CHECK(simulated_bubble(ScheduleKind::interleaved, p, m, 2, seconds) ==
          Approx(bubble_interleaved(p, 2, seconds)));
    CHECK(simulated_bubble(ScheduleKind::zero_bubble_h1, p, m, 1, seconds) ==
          Approx(bubble_zb1p(p, seconds)));
    CHECK(bubble_share_1f1b(p, m) ==
          Approx(bubble_1f1b(p, seconds) / (bubble_1f1b(p, seconds) + m * 3.0)));
  }
  CHECK(bubble_dual_pipe(8, {1, 2, 1, 3}) == 3 * (3 + 2 - 3));
  CHECK(bubble_share_chimera(4, 8) == Approx(2.0 / 18));
  CHECK(bubble_share_zb1p(4, 8) == Approx(1.0 / 11));
  CHECK(bubble_share_v_half(4, 8) == Approx(3.0 / 22));
}

TEST_CASE("memory of two-buffered and flushed pipelines") {
  const StageLoad load{8, 16, 0.5};
  CHECK(two_buffered_bytes(load, 4, true) == 4 + 4 + 2);
  CHECK(two_buffered_bytes(load, 4, false) == 4 + 16);
  CHECK(gpipe_bytes(load, 4, 32) == 2 + 4 + 16);
}
