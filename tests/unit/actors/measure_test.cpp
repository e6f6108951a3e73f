#include "actors/measure.h"

#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

const ModelSpec large = {ModelFamily::gpt2, 12, 768, 12, 12, 3072, 50304, 1024};

}  // namespace

TEST_CASE("large models are measured on few rows and words, small ones whole") {
  const StepShape shape{16, 8, 512, 128, DType::f32};
  const MeasuringSize block = measuring_size(large, shape, LayerKind::block);
  CHECK(block.shape.microbatch_size == 2);  // of 512: 1024 rows
  CHECK(block.shape.sequence_length == 512);
  CHECK(block.model == large);
  for (const LayerKind kind : {LayerKind::embedding, LayerKind::head}) {
    const MeasuringSize table = measuring_size(large, shape, kind);
    CHECK(table.shape.microbatch_size == 1);
    CHECK(table.shape.sequence_length == 512);
    CHECK(table.model.vocabulary == 8192);
  }
  // A sequence of a block stays whole, as attention depends on its length.
  const StepShape long_shape{1, 1, 4096, 1, DType::f32};
  CHECK(measuring_size(large, long_shape, LayerKind::block).shape.sequence_length == 4096);
  CHECK(measuring_size(large, long_shape, LayerKind::block).shape.microbatch_size == 1);
  CHECK(measuring_size(large, long_shape, LayerKind::head).shape.sequence_length == 512);
  for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head}) {
    const MeasuringSize whole = measuring_size(tiny_gpt2(), tiny_shape(2), kind);
    CHECK(whole.model == tiny_gpt2());
    CHECK(whole.shape == tiny_shape(2));
  }
}

TEST_CASE("times are carried over by flops, and by bytes where there are none") {
  LayerProfile at, wanted;
  at.forward.matmul_flops = 100;
  wanted.forward.matmul_flops = 250;
  at.forward.bytes_moved = 1;
  wanted.forward.bytes_moved = 1000;
  at.norm.bytes_moved = 10;
  wanted.norm.bytes_moved = 40;
  const LayerSeconds seconds = carried_over({2, 3, 5, 7, 11}, at, wanted);
  CHECK(seconds.forward == 5);
  CHECK(seconds.backward_input == 3);  // nothing counted: as it was
  CHECK(seconds.backward_weight == 5);
  CHECK(seconds.norm == 28);
  CHECK(seconds.update == 11);
  // At the measuring size of the head: a quarter of the rows, 8192 of 50304 words.
  const StepShape shape{1, 4, 512, 4, DType::f32};
  const MeasuringSize size = measuring_size(large, shape, LayerKind::head);
  const LayerSeconds head =
      carried_over({1, 1, 1, 1, 1}, profile_model(size.model, size.shape).head,
                   profile_model(large, shape).head);
  CHECK(head.forward == Approx(4 * 50304.0 / 8192));
  CHECK(head.backward_input == Approx(4).epsilon(0.01));
}

TEST_CASE("every layer kind of a CPU device gets times, alike devices once") {
  RunSpec spec;
  spec.model = tiny_llama();
  spec.shape = tiny_shape(2);
  spec.cluster.devices.resize(3);
  for (DeviceSpec& device : spec.cluster.devices) device.kind = DeviceKind::cpu;
  spec.cluster.devices[1].kind = DeviceKind::emulated;
  const auto measured = measure_devices(spec, [](DeviceId) { return true; });
  REQUIRE(measured.ok());
  REQUIRE(measured->size() == 2);
  for (const auto& [device, kinds] : *measured) {
    CHECK(device != 1);
    REQUIRE(kinds.size() == 3);
    for (const auto& [kind, known] : kinds) {
      REQUIRE(known.size() == 1);  // nothing is open
      CHECK(known.at(2).forward > 0);
    }
    const LayerSeconds& block = kinds.at(LayerKind::block).at(2);
    CHECK(block.update > 0);
    CHECK(block.forward == measured->at(0).at(LayerKind::block).at(2).forward);
  }
  const auto none = measure_devices(spec, [](DeviceId device) { return device.value == 1; });
  REQUIRE(none.ok());
  CHECK(none->empty());
}

TEST_CASE("where microbatches are open, small ones are measured as well") {
  RunSpec spec;
  spec.model = tiny_llama();
  spec.shape = tiny_shape(1);
  spec.shape.batch_size = spec.shape.microbatch_size = 256;
  spec.plan.choose_microbatches = true;
  spec.cluster.devices.resize(1);
  spec.cluster.devices[0].kind = DeviceKind::cpu;
  const auto measured = measure_devices(spec, [](DeviceId) { return true; });
  REQUIRE(measured.ok());
  for (const auto& [kind, known] : measured->at(0)) {
    const std::uint32_t largest =
        measuring_size(spec.model, spec.shape, kind).shape.microbatch_size;
    const auto middle = static_cast<std::uint32_t>(std::lround(std::sqrt(largest)));
    CAPTURE(static_cast<int>(kind), largest);
    REQUIRE(largest > middle);
    std::vector<std::uint32_t> sizes;
    for (const auto& [size, seconds] : known) {
      sizes.push_back(size);
      CHECK(seconds.forward > 0);
    }
    CHECK(sizes == std::vector<std::uint32_t>{1, middle, largest, 256});
    // Beyond the largest that was measured, in proportion.
    CHECK(known.at(256).forward == Approx(known.at(largest).forward * 256 / largest).epsilon(0.05));
  }
  // The smallest that may be chosen fills the device: nothing more to learn.
  spec.shape.batch_size = spec.shape.microbatch_size = 1;
  const auto one = measure_devices(spec, [](DeviceId) { return true; });
  REQUIRE(one.ok());
  for (const auto& [kind, known] : one->at(0)) CHECK(known.size() == 1);
}
