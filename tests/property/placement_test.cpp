// Placement never changes the mathematics: every split, schedule and number of threads gives the
// bits of one device, for losses, norms, gradients of each tensor, weights and moments.
#include <bit>
#include <cstring>
#include <map>
#include <string>

#include "kernels/reference_pipeline.h"
#include "planner/schedules.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

struct Placement {
  std::string name;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  std::vector<LayerRange> layers;
  std::vector<std::uint32_t> devices;  ///< by stage
  std::uint32_t threads = 1;
  std::vector<StageRecompute> recompute = {};  ///< by stage; empty: none
};

/// Layers 0 (embedding), 1 to 4 (blocks), 5 (head).
std::vector<Placement> placements() {
  const std::vector<LayerRange> two = {{0, 3}, {3, 6}};
  const std::vector<LayerRange> uneven = {{0, 5}, {5, 6}};
  const std::vector<LayerRange> ends_alone = {{0, 1}, {1, 5}, {5, 6}};
  const std::vector<LayerRange> four = {{0, 2}, {2, 3}, {3, 4}, {4, 6}};
  const std::vector<LayerRange> six = {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}};
  using enum ScheduleKind;
  return {
      {"two gpipe", gpipe, two, {0, 1}, 1},
      {"two 1f1b", one_f_one_b, two, {0, 1}, 2},
      {"uneven zb-h1", zero_bubble_h1, uneven, {0, 1}, 1},
      {"uneven gpipe", gpipe, uneven, {1, 0}, 2},
      {"L016 ends alone 1f1b", one_f_one_b, ends_alone, {0, 1, 2}, 1},
      {"L016 ends alone zb-h1", zero_bubble_h1, ends_alone, {0, 1, 2}, 2},
      {"four 1f1b", one_f_one_b, four, {0, 1, 2, 3}, 2},
      {"four gpipe", gpipe, four, {0, 1, 2, 3}, 1},
      {"four zb-h1", zero_bubble_h1, four, {0, 1, 2, 3}, 1},
      {"interleaved on two", interleaved, four, {0, 1, 0, 1}, 2},
      {"interleaved on three", interleaved, six, {0, 1, 2, 0, 1, 2}, 1},
      {"four stages on one device", one_f_one_b, four, {0, 0, 0, 0}, 1},
      {"L057 both ends on one device", one_f_one_b, ends_alone, {0, 1, 0}, 2},
  };
}

/// What one step leaves behind, as bits.
struct StepBits {
  std::uint64_t loss = 0, norm = 0, state = 0;
  std::map<std::uint32_t, std::vector<float>> gradients;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Collects gradients; both copies of a tied table must have the same.
void collect(StepBits& bits, Stage& stage, std::map<std::uint32_t, std::vector<float>>& weights) {
  for (const NamedState& tensor : stage.state()) {
    const std::vector<float> gradient = values(tensor.gradient);
    const auto [at, added] = bits.gradients.emplace(tensor.tensor, gradient);
    if (!added) CHECK(same_bits(at->second, gradient));
    const auto [copy, first] = weights.emplace(tensor.tensor, values(tensor.weight));
    if (!first) CHECK(same_bits(copy->second, values(tensor.weight)));
  }
}

struct Case {
  ModelSpec model;
  StepShape shape;
  std::vector<std::uint32_t> sequences;
  std::vector<std::uint32_t> lengths = {16, 16};  ///< of the sequences, by step
};

AdamWSpec optimizer() {
  AdamWSpec adam;
  adam.clip_norm = 0.5;  // clips
  return adam;
}

TokenBatch batch_of(const Case& one, std::uint64_t step) {
  return TokenBatch(one.model, one.sequences, one.lengths[step - 1], 100 + step, 7);
}

std::vector<StepBits> run_alone(const Case& one,
                                StageRecompute recompute = {},
                                Stream::Body body = Stream::Body::fast) {
  PlainDevice device;
  OwnStream own(body, 1);
  StageSpec spec = whole_model(one.model, one.shape);
  spec.recompute = recompute;
  spec.optimizer = optimizer();
  const auto stage = make_stage(device, spec);
  stage->initialize();
  std::vector<StepBits> list;
  for (std::uint64_t step = 1; step <= one.lengths.size(); ++step) {
    const TokenBatch batch = batch_of(one, step);
    const StepOutcome outcome =
        run_step(*stage, own.stream, {step, step, 1e-2, batch.microbatches});
    StepBits& bits = list.emplace_back();
    std::map<std::uint32_t, std::vector<float>> weights;
    collect(bits, *stage, weights);
    bits.loss = std::bit_cast<std::uint64_t>(outcome.loss);
    bits.norm = std::bit_cast<std::uint64_t>(outcome.norm);
    bits.state = state_hash_of(stage->state_hashes(own.stream));
  }
  return list;
}

PipelineSpec pipeline_of(const Case& one, const Placement& placement) {
  PipelineSpec spec;
  spec.model = one.model;
  spec.shape = one.shape;
  spec.optimizer = optimizer();
  spec.seed = 7;
  spec.layers = placement.layers;
  spec.recompute = placement.recompute;
  StageMap map;
  for (const std::uint32_t device : placement.devices)
    map.device_of_stage.push_back(DeviceId{device});
  map.microbatch_count = one.shape.microbatch_count;
  map.device_count = 4;
  map.tied = one.model.tied;
  auto schedule = make_schedule(placement.schedule, map);
  EXPECTS(schedule.ok());
  spec.schedule = *schedule;
  return spec;
}

void compare(const Case& one, const Placement& placement, const std::vector<StepBits>& expected) {
  PipelineSpec spec = pipeline_of(one, placement);
  std::vector<std::unique_ptr<PlainDevice>> devices;
  for (std::uint32_t d = 0; d < 4; ++d) {
    devices.push_back(std::make_unique<PlainDevice>());
    spec.devices.push_back(devices.back().get());
  }
  OwnStream own(Stream::Body::fast, placement.threads);
  auto pipeline = ReferencePipeline::create(spec);
  REQUIRE(pipeline.ok());
  (*pipeline)->initialize();
  for (std::uint64_t step = 1; step <= one.lengths.size(); ++step) {
    INFO("step " << step);
    const TokenBatch batch = batch_of(one, step);
    const StepOutcome outcome =
        (*pipeline)->run_step(own.stream, {step, step, 1e-2, batch.microbatches});
    StepBits bits;
    std::map<std::uint32_t, std::vector<float>> weights;
    for (Stage* stage : (*pipeline)->stages()) collect(bits, *stage, weights);
    const StepBits& wanted = expected[step - 1];
    CHECK(std::bit_cast<std::uint64_t>(outcome.loss) == wanted.loss);
    CHECK(std::bit_cast<std::uint64_t>(outcome.norm) == wanted.norm);
    CHECK((*pipeline)->state_hash(own.stream) == wanted.state);
    REQUIRE(bits.gradients.size() == wanted.gradients.size());
    for (const auto& [tensor, gradient] : wanted.gradients) {
      INFO("tensor " << tensor);
      CHECK(same_bits(bits.gradients.at(tensor), gradient));
    }
  }
}

}  // namespace

TEST_CASE("L048 L057 L060 every placement has the bits of one device") {
  const bool llama = GENERATE(false, true);
  const bool tied = GENERATE(true, false);
  const DType compute = GENERATE(DType::f32, DType::bf16);
  const std::uint32_t microbatches = GENERATE(1u, 2u, 3u, 8u);
  const bool dropout = GENERATE(false, true);
  Case one;
  one.model = llama ? tiny_llama(tied) : tiny_gpt2(tied);
  one.model.dropout = dropout ? 0.1 : 0.0;
  one.shape = tiny_shape(microbatches, 2, compute);
  for (std::uint32_t m = 0; m < microbatches; ++m) one.sequences.push_back(m % 3 == 1 ? 1 : 2);
  const std::vector<StepBits> expected = run_alone(one);
  for (const Placement& placement : placements()) {
    INFO(placement.name << (llama ? ", llama" : ", gpt2") << (tied ? " tied " : " untied ")
                        << to_string(compute) << ", " << microbatches << " microbatches"
                        << (dropout ? ", dropout" : ""));
    compare(one, placement, expected);
  }
}

TEST_CASE("L032 steps of nine, sixteen and four tokens a sequence each keep their length") {
  const bool llama = GENERATE(false, true);
  const DType compute = GENERATE(DType::f32, DType::bf16);
  Case one;
  one.model = llama ? tiny_llama() : tiny_gpt2();
  one.shape = tiny_shape(3, 2, compute);
  one.sequences = {2, 1, 2};
  one.lengths = {9, 16, 4};
  const std::vector<StepBits> expected = run_alone(one);
  for (const Placement& placement : placements()) {
    INFO(placement.name << (llama ? ", llama " : ", gpt2 ") << to_string(compute));
    compare(one, placement, expected);
  }
  // The same tokens in a stage that is no longer than they are.
  Case exact = one;
  exact.shape.sequence_length = 9;
  exact.lengths = {9};
  const std::vector<StepBits> alone = run_alone(exact);
  CHECK(alone[0].loss == expected[0].loss);
  CHECK(alone[0].norm == expected[0].norm);
}

TEST_CASE("what blocks compute again has the bits of what they would have kept") {
  const bool llama = GENERATE(false, true);
  const bool tied = GENERATE(true, false);
  const DType compute = GENERATE(DType::f32, DType::bf16);
  const bool dropout = GENERATE(false, true);
  Case one;
  one.model = llama ? tiny_llama(tied) : tiny_gpt2(tied);
  one.model.dropout = dropout ? 0.1 : 0.0;
  one.shape = tiny_shape(3, 2, compute);
  one.sequences = {2, 1, 2};
  one.lengths = {16, 9, 4};
  INFO((llama ? "llama" : "gpt2") << (tied ? " tied " : " untied ") << to_string(compute)
                                  << (dropout ? ", dropout" : ""));
  const std::vector<StepBits> expected = run_alone(one);
  // A forward under a policy, and the naive ops against themselves.
  for (const StageRecompute policy : {StageRecompute{4, 0}, {0, 4}, {1, 2}}) {
    INFO("alone, " << to_text(policy));
    for (const Stream::Body body : {Stream::Body::fast, Stream::Body::naive}) {
      const std::vector<StepBits> kept =
          body == Stream::Body::fast ? expected : run_alone(one, {}, body);
      const std::vector<StepBits> again = run_alone(one, policy, body);
      for (std::size_t step = 0; step < kept.size(); ++step) {
        CHECK(again[step].loss == kept[step].loss);
        CHECK(again[step].norm == kept[step].norm);
        CHECK(again[step].state == kept[step].state);
        for (const auto& [tensor, gradient] : kept[step].gradients)
          CHECK(same_bits(again[step].gradients.at(tensor), gradient));
      }
    }
  }
  for (Placement placement : placements()) {
    if (placement.schedule == ScheduleKind::zero_bubble_h1) continue;
    for (const Recompute policy : {Recompute::selective, Recompute::full}) {
      placement.recompute.clear();
      for (const LayerRange layers : placement.layers)
        placement.recompute.push_back(recompute_all(one.model, layers, policy));
      INFO(placement.name << ", " << to_string(policy));
      compare(one, placement, expected);
    }
  }
}
