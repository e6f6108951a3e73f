#include "planner/zero_memory.h"

#include "tests/support/catch.h"
#include "tests/support/printed.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

double gib(Bytes bytes) {
  return static_cast<double>(bytes) / static_cast<double>(1_GiB);
}

}  // namespace

TEST_CASE("ZeRO shares out optimizer, gradients and parameters, one more with each stage") {
  constexpr std::uint64_t parameters = 1000;
  constexpr std::uint64_t replicas = 10;
  CHECK(state_memory(parameters, ZeroStage::none, replicas) == StateMemory{2000, 2000, 12000});
  CHECK(state_memory(parameters, ZeroStage::optimizer, replicas) == StateMemory{2000, 2000, 1200});
  CHECK(state_memory(parameters, ZeroStage::gradients, replicas) == StateMemory{2000, 200, 1200});
  CHECK(state_memory(parameters, ZeroStage::parameters, replicas) == StateMemory{200, 200, 1200});
  CHECK(state_memory(parameters, ZeroStage::none, 1, adam_f32).total() == 16 * parameters);
}

TEST_CASE("one replica gains nothing; shares are whole parameters") {
  for (const auto stage :
       {ZeroStage::none, ZeroStage::optimizer, ZeroStage::gradients, ZeroStage::parameters}) {
    CHECK(state_memory(7, stage, 1).total() == 16 * 7);
    // The shares of all replicas hold everything, and less than one parameter too much each.
    const Bytes all = 3 * state_memory(7, stage, 3).optimizer;
    if (stage != ZeroStage::none) CHECK(all == 12 * 9);
  }
  CHECK(state_memory(2, ZeroStage::parameters, 1024).total() == 16);
}

/// Rajbhandari et al. 2020, table 1: 7.5 billion parameters, in GB.
TEST_CASE("the published table of ZeRO") {
  const auto gb = [](ZeroStage stage, std::uint64_t replicas) {
    return static_cast<double>(state_memory(7'500'000'000, stage, replicas).total()) / 1e9;
  };
  CHECK(agrees_as_printed(gb(ZeroStage::none, 64), "120"));
  CHECK(agrees_as_printed(gb(ZeroStage::optimizer, 64), "31.4"));
  CHECK(agrees_as_printed(gb(ZeroStage::gradients, 64), "16.6"));
  CHECK(agrees_as_printed(gb(ZeroStage::parameters, 64), "1.88"));
  CHECK(agrees_as_printed(gb(ZeroStage::gradients, 4), "41.3"));
  CHECK_FALSE(agrees_as_printed(gb(ZeroStage::gradients, 4), "41.4"));
}

TEST_CASE("parts of the state on other tiers are counted per node") {
  const StateMemory of_device = state_memory(1000, ZeroStage::gradients, 10);
  const PlacedState placed =
      placed_state(of_device, 4, {StateTier::device, StateTier::host, StateTier::disk});
  CHECK(placed.device == StateMemory{2000, 0, 0});
  CHECK(placed.host == StateMemory{0, 4 * 200, 0});
  CHECK(placed.disk == StateMemory{0, 0, 4 * 1200});
  CHECK(placed_state(of_device, 4, {}).device == of_device);
}

/// DeepSpeed's documentation (docs/code-docs/source/memory.rst): 2,851 million parameters, the
/// largest layer with 32 million, one node of 8 GPUs.
TEST_CASE("DeepSpeed's estimators to the printed digits") {
  EstimatorRequest request{2'851'000'000, 32'000'000, 8, 1, false, false, true};
  CHECK(agrees_as_printed(gib(deepspeed_zero2_estimate(request).device), "15.93"));
  CHECK(agrees_as_printed(gib(deepspeed_zero2_estimate(request).host), "127.45"));
  CHECK(agrees_as_printed(gib(deepspeed_zero3_estimate(request).device), "6.09"));
  CHECK(agrees_as_printed(gib(deepspeed_zero3_estimate(request).host), "1.43"));
  request.sharded_start = false;
  CHECK(agrees_as_printed(gib(deepspeed_zero3_estimate(request).host), "127.45"));
  request.offload_optimizer = true;
  CHECK(agrees_as_printed(gib(deepspeed_zero2_estimate(request).device), "5.31"));
  CHECK(agrees_as_printed(gib(deepspeed_zero3_estimate(request).device), "0.78"));
  CHECK(agrees_as_printed(gib(deepspeed_zero3_estimate(request).host), "127.45"));
  request.sharded_start = true;
  CHECK(agrees_as_printed(gib(deepspeed_zero3_estimate(request).host), "63.72"));
  request.offload_parameters = true;
  CHECK(deepspeed_zero3_estimate(request).device == 4 * request.largest_layer);
  CHECK(deepspeed_zero3_estimate(request).host == request.parameters * 18 * 3 / 2);
}

TEST_CASE("DeepSpeed's estimators over several nodes") {
  const EstimatorRequest request{1'000'000, 1000, 4, 2, true, true, false};
  CHECK(deepspeed_zero2_estimate(request).host == 1'000'000 * (4 * 8) * 3 / 2);
  // max(4 x 4, 18 / 2) = 16 bytes a parameter
  CHECK(deepspeed_zero3_estimate(request).host == 1'000'000 * 16 * 3 / 2);
  CHECK(deepspeed_zero3_estimate(request).largest_layer == 4000);
}

/// ZeRO-Infinity, figure 2a: one trillion parameters.
TEST_CASE("sizes of ZeRO-Infinity") {
  const TransformerShape shape{128, 25600, 256, 1024};
  CHECK(agrees_as_printed(static_cast<double>(block_parameters(shape)) / 1e12, "1.01"));
  const auto states =
      state_memory(block_parameters(shape), ZeroStage::none, 1, adam_16_bit_both_gradients);
  CHECK(agrees_as_printed(gib(states.total()) / 1024, "18.31"));
  CHECK(agrees_as_printed(gib(activation_bytes(shape, 64)) / 1024, "7.13"));
  CHECK(agrees_as_printed(gib(checkpoint_bytes(shape, 32)) / 1024, "0.20"));
  CHECK(agrees_as_printed(gib(activation_working_bytes(shape, 4)), "3.56"));
  CHECK(agrees_as_printed(gib(largest_operator_bytes(shape)), "9.77"));
  CHECK(checkpoint_bytes(shape, 32, 2) * 2 == checkpoint_bytes(shape, 32));
  CHECK(activation_working_bytes(shape, 4, 2) == 2 * activation_working_bytes(shape, 4));
}

/// ZeRO-Infinity, section 4.2, sentences of the text for a V100 of 70 Tflop/s at sequence 1024.
TEST_CASE("bandwidths that ZeRO-Infinity's text names") {
  constexpr double peak = 70e12;
  TransformerShape shape{1, 2048, 16, 1024};
  const double states = arithmetic_intensity(TravellingState::parameters_and_gradients, shape, 1);
  CHECK(states == 1024);
  CHECK(offload_efficiency(states, 70e9, peak) > 0.5);
  CHECK(offload_efficiency(states, 65e9, peak) < 0.5);
  const double optimizer = arithmetic_intensity(TravellingState::optimizer, shape, 2);
  CHECK(offload_efficiency(optimizer, 1.5e12, peak) > 0.9);
  CHECK(bandwidth_for(0.9, optimizer, peak) < 1.5e12);
  CHECK(offload_efficiency(optimizer, bandwidth_for(0.9, optimizer, peak), peak) == Approx(0.9));
  const double checkpoints = arithmetic_intensity(TravellingState::checkpoints, shape, 2);
  CHECK(offload_efficiency(checkpoints, 2e9, peak) > 0.5);
  shape.hidden = 8192;
  CHECK(bandwidth_for(0.5, arithmetic_intensity(TravellingState::checkpoints, shape, 2), peak) <
        1e9);
}
