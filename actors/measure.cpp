#include "actors/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <mutex>
#include <numeric>
#include <vector>

#include "devices/timing.h"
#include "kernels/ops.h"
#include "kernels/stage.h"
#include "planner/plan_choice.h"

namespace troupe {
namespace {

constexpr Bytes measuring_memory = Bytes{1} << 46;  // whatever the machine gives
constexpr Seconds time_limit = 0.4;                 // for one layer kind
constexpr int most_runs = 7;
constexpr int least_runs = 3;  // the first is the warm-up
// Enough that products run at their full rate, and more than the caches hold.
constexpr std::uint32_t block_rows = 1024;
constexpr std::uint32_t table_rows = 512;  // of activations at the embedding and the head
constexpr std::uint32_t vocabulary = 8192;

/// The seconds that `body` took on the device.
Seconds timed(Device& device, const std::function<void(Stream&)>& body) {
  Seconds seconds = 0;
  Work work;
  work.body = body;
  work.done = [&](WorkTimes times) { seconds = times.end - times.begin; };
  device.submit(std::move(work));
  device.drain();
  return seconds;
}

/// Everything one layer reads and writes.
struct LayerBench {
  std::vector<std::int32_t> tokens, targets;
  std::vector<std::byte> input, output_gradient, input_gradient;

  LayerBench(const ModelSpec& model, const StepShape& shape) {
    const std::size_t count = std::size_t{shape.microbatch_size} * shape.sequence_length;
    for (std::size_t i = 0; i < count; ++i) {
      tokens.push_back(static_cast<std::int32_t>(i * 7 % model.vocabulary));
      targets.push_back(static_cast<std::int32_t>((i * 7 + 7) % model.vocabulary));
    }
    const std::size_t bytes = count * model.width * size_of(shape.compute) + 64;
    for (auto* buffer : {&input, &output_gradient, &input_gradient}) buffer->resize(bytes);
  }
  static std::byte* aligned(std::vector<std::byte>& buffer) {
    const auto address = reinterpret_cast<std::uintptr_t>(buffer.data());
    return buffer.data() + (64 - address % 64) % 64;
  }
};

/// One layer kind as it was measured.
struct Timing {
  LayerSeconds middle;
  bool unsteady = false;
};

Timing timing_of(std::vector<std::array<Seconds, 5>> runs) {
  runs.erase(runs.begin());
  std::vector<Seconds> whole;
  whole.reserve(runs.size());
  for (const auto& run : runs) whole.push_back(std::accumulate(run.begin(), run.end(), 0.0));
  std::sort(whole.begin(), whole.end());
  std::array<Seconds, 5> middle{};
  for (std::size_t i = 0; i < middle.size(); ++i) {
    std::vector<Seconds> one;
    one.reserve(runs.size());
    for (const auto& run : runs) one.push_back(run[i]);
    std::sort(one.begin(), one.end());
    middle[i] = median(one);
  }
  return {{middle[0], middle[1], middle[2], middle[3], middle[4]}, is_unsteady(whole)};
}

/// Any values do: no time depends on them. Drawing them would take longer than measuring.
void fill_parameters(Stage& stage, Stream& stream) {
  for (const NamedState& one : stage.state()) {
    kernels::fill(stream, one.weight, 0.02F);
    kernels::fill(stream, one.first_moment, 0);
    kernels::fill(stream, one.second_moment, 0);
  }
  stage.weights_changed(stream);
}

Result<Timing> measure_layer(Device& device,
                             const ModelSpec& model,
                             const StepShape& shape,
                             std::uint32_t layer,
                             Seconds limit) {
  LayerBench bench(model, shape);
  StageSpec spec;
  spec.model = model;
  spec.shape = shape;
  spec.layers = {layer, layer + 1};
  spec.split_backward = true;
  spec.deferred = 1;
  auto made = Stage::create(device, spec);
  if (!made) return made.error();
  Stage& stage = **made;
  (void)timed(device, [&](Stream& stream) { fill_parameters(stage, stream); });
  MicrobatchTokens tokens{bench.tokens, bench.targets, shape.microbatch_size, 0};
  const auto boundary = [&](std::vector<std::byte>& buffer) {
    return make_tensor(LayerBench::aligned(buffer), shape.compute,
                       {shape.microbatch_size, shape.sequence_length, model.width});
  };
  const MicrobatchId m{0};
  const bool first = layer == 0;
  const bool last = layer + 1 == layer_count(model);
  const Tensor in = first ? Tensor{} : boundary(bench.input);
  const Tensor gradient_in = last ? Tensor{} : boundary(bench.output_gradient);
  const Tensor gradient_out = first ? Tensor{} : boundary(bench.input_gradient);
  std::vector<std::array<Seconds, 5>> runs;
  Seconds spent = 0;
  while (runs.size() < most_runs && (runs.size() < least_runs || spent < limit)) {
    const std::uint64_t step = runs.size() + 1;
    std::array<Seconds, 5> run{};
    (void)timed(device,
                [&](Stream& stream) { stage.begin_step(stream, step, tokens.tokens.size()); });
    run[0] = timed(device, [&](Stream& stream) { stage.forward(stream, m, tokens, in); });
    run[1] = timed(device, [&](Stream& stream) {
      stage.backward_input(stream, m, gradient_in, gradient_out);
    });
    run[2] = timed(device, [&](Stream& stream) { stage.backward_weight(stream, m); });
    run[3] = timed(device, [&](Stream& stream) { (void)stage.norm(stream); });
    run[4] = timed(device, [&](Stream& stream) {
      stage.update(stream, {step, step, 1e-6, 1, false});
    });
    for (const Seconds one : run) spent += one;
    runs.push_back(run);
  }
  return timing_of(std::move(runs));
}

Result<std::unique_ptr<Device>> open_without_cap(DeviceSpec spec) {
  spec.memory = measuring_memory;
  return open_device(spec, {});
}

/// The run's own shape and, where microbatches are open, others of another measuring size: the
/// smallest, and half way between the two in doublings.
std::vector<StepShape> measured_shapes(const ModelSpec& model,
                                       const StepShape& shape,
                                       LayerKind kind,
                                       bool open) {
  std::vector<StepShape> shapes{shape};
  if (!open) return shapes;
  const std::uint32_t largest = measuring_size(model, shape, kind).shape.microbatch_size;
  const std::uint32_t smallest = tried_shapes(shape).back().microbatch_size;
  const double middle = std::sqrt(static_cast<double>(smallest) * largest);
  std::uint32_t above = largest;
  for (const std::uint32_t size : {static_cast<std::uint32_t>(std::lround(middle)), smallest}) {
    if (size >= above) continue;
    above = size;
    shapes.push_back(shape);
    shapes.back().microbatch_size = size;
  }
  return shapes;
}

}  // namespace

MeasuringSize measuring_size(const ModelSpec& model, const StepShape& shape, LayerKind kind) {
  MeasuringSize size{model, shape};
  const bool block = kind == LayerKind::block;
  if (!block) {
    size.model.vocabulary = std::min(model.vocabulary, vocabulary);
    size.shape.sequence_length = std::min(shape.sequence_length, table_rows);
  }
  const std::uint32_t sequences = (block ? block_rows : table_rows) / size.shape.sequence_length;
  size.shape.microbatch_size = std::clamp(sequences, 1U, shape.microbatch_size);
  return size;
}

Result<std::map<LayerKind, SecondsBySize>> measure_layers(const DeviceSpec& spec,
                                                          const ModelSpec& model,
                                                          const StepShape& shape,
                                                          bool open) {
  auto device = open_without_cap(spec);
  if (!device) return device.error();
  std::map<LayerKind, SecondsBySize> measured;
  for (const std::uint32_t layer : {0U, 1U, layer_count(model) - 1}) {
    const LayerKind kind = layer_kind(model, layer);
    for (const StepShape& wanted : measured_shapes(model, shape, kind, open)) {
      const MeasuringSize size = measuring_size(model, wanted, kind);
      const Seconds limit = wanted == shape ? time_limit : time_limit / 3;
      const auto seconds = measure_layer(**device, size.model, size.shape, layer, limit);
      if (!seconds) return seconds.error();
      const LayerProfile at = profile_model(size.model, size.shape).of(kind);
      StepShape known = wanted;
      known.microbatch_size = size.shape.microbatch_size;
      for (const StepShape& carried : {known, wanted})
        measured[kind][carried.microbatch_size] =
            carried_over(seconds->middle, at, profile_model(model, carried).of(kind));
    }
  }
  return measured;
}

Result<std::vector<LayerRatio>> measure_layer_ratios(const DeviceSpec& spec,
                                                     const ModelSpec& model,
                                                     const StepShape& shape,
                                                     Seconds budget,
                                                     std::vector<std::string>& unsteady) {
  auto device = open_without_cap(spec);
  if (!device) return device.error();
  std::vector<LayerRatio> ratios;
  for (const std::uint32_t layer : {0U, 1U, layer_count(model) - 1}) {
    const LayerKind kind = layer_kind(model, layer);
    const MeasuringSize at = measuring_size(model, shape, kind);
    const auto timing = measure_layer(**device, at.model, at.shape, layer, budget / 3);
    if (!timing) return timing.error();
    ratios.push_back(ratio_of(size_of(model, shape, kind), timing->middle,
                              profile_model(at.model, at.shape).of(kind), spec.rates));
    if (timing->unsteady)
      unsteady.push_back(fmt::format("{} of width {} in {}", to_string(kind), model.width,
                                     to_string(shape.compute)));
  }
  return ratios;
}

Result<MeasuredDevices> measure_devices(const RunSpec& spec,
                                        const std::function<bool(DeviceId)>& wanted) {
  MeasuredDevices measured;
  std::map<std::uint32_t, std::map<LayerKind, SecondsBySize>> by_threads;
  for (std::uint32_t d = 0; d < spec.cluster.devices.size(); ++d) {
    const DeviceSpec& device = spec.cluster.devices[d];
    if (!device.needs_measuring() || !wanted(DeviceId{d})) continue;
    auto known = by_threads.find(device.threads);
    if (known == by_threads.end()) {
      auto kinds = measure_layers(device, spec.model, spec.shape, spec.plan.choose_microbatches);
      if (!kinds) return kinds.error();
      known = by_threads.emplace(device.threads, std::move(*kinds)).first;
    }
    measured[d] = known->second;
  }
  return measured;
}

}  // namespace troupe
