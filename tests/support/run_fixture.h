/// Runs to compare: the same training through the bare step loop and through actors, on any number
/// of devices and processes.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/checkpoint/checkpoint.h"
#include "actors/launch.h"
#include "kernels/step_loop.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_training.h"

namespace troupe::test {

/// Tokens that depend on the step alone; every so-manieth target is masked.
class RandomTokens final : public TokenSource {
 public:
  RandomTokens(ModelSpec model, StepShape shape, std::uint32_t masked = 0)
      : model_(std::move(model)), shape_(shape), masked_(masked) {}
  troupe::TokenBatch batch_for_step(std::uint64_t step) override { return batch(step); }
  std::vector<troupe::TokenBatch> validation_batches() override {
    return {batch(1000001), batch(1000002)};
  }
  std::uint64_t fingerprint() const override { return masked_ + 1; }

 private:
  troupe::TokenBatch batch(std::uint64_t seed) const {
    std::vector<std::uint32_t> sequences;
    for (std::uint32_t left = shape_.batch_size; left > 0;) {
      sequences.push_back(std::min(left, shape_.microbatch_size));
      left -= sequences.back();
    }
    const TokenBatch made(model_, sequences, shape_.sequence_length, seed, masked_);
    troupe::TokenBatch batch;
    batch.step = seed;
    batch.sequence_length = shape_.sequence_length;
    for (std::size_t m = 0; m < sequences.size(); ++m)
      batch.microbatches.push_back(
          {made.tokens[m], made.targets[m], sequences[m], made.microbatches[m].first_sample});
    return batch;
  }
  ModelSpec model_;
  StepShape shape_;
  std::uint32_t masked_;
};

/// What a test compares, step by step.
struct Trace {
  std::vector<std::uint64_t> loss_bits, norm_bits, state_hash;
  std::vector<bool> skipped;
  friend bool operator==(const Trace&, const Trace&) = default;
};

inline AdamWSpec tiny_optimizer() {
  AdamWSpec adam;
  adam.weight_decay = 0.1;
  adam.clip_norm = 0.5;
  return adam;
}

inline RunSpec tiny_run(const ModelSpec& model,
                        const StepShape& shape,
                        std::uint32_t devices,
                        ScheduleKind schedule = ScheduleKind::one_f_one_b,
                        std::uint64_t steps = 3) {
  RunSpec spec;
  spec.name = "tiny";
  spec.steps = steps;
  spec.seed = 7;
  spec.model = model;
  spec.shape = shape;
  spec.optimizer = tiny_optimizer();
  spec.learning_rate = {LearningRateShape::cosine, 1e-2, 1e-3, 2, steps};
  spec.evaluation.batches = 0;
  spec.cluster.nodes = {{"n0", false}};
  for (std::uint32_t d = 0; d < devices; ++d) {
    DeviceSpec device;
    device.name = "n0.cpu" + std::to_string(d);
    device.memory = 1_GiB;
    // Measured before, so that tests do not measure.
    for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head})
      device.measured[kind] = {1e-3, 1e-3, 1e-3, 1e-4, 1e-4};
    spec.cluster.devices.push_back(device);
  }
  spec.plan.shape = shape;
  spec.plan.schedule = schedule;
  spec.plan.chunks = schedule == ScheduleKind::interleaved ? 2 : 1;
  return spec;
}

/// Pins stages to devices: layer counts in order, stage s on the device s mod devices.
inline void pin_stages(RunSpec& spec, const std::vector<std::uint32_t>& layers) {
  std::uint32_t first = 0;
  const auto devices = static_cast<std::uint32_t>(spec.cluster.devices.size());
  for (std::uint32_t s = 0; s < layers.size(); ++s) {
    spec.plan.pinned.push_back({{first, first + layers[s]}, DeviceId{s % devices}});
    first += layers[s];
  }
}

using TensorValues = std::map<std::string, std::vector<float>>;

/// The bare step loop on one device. `gradients`: of each tensor in the last step.
inline Trace reference_trace(const RunSpec& spec,
                             TokenSource& tokens,
                             TensorValues* gradients = nullptr) {
  Trace trace;
  PlainDevice device;
  StageSpec whole = whole_model(spec.model, spec.shape);
  whole.optimizer = spec.optimizer;
  whole.seed = spec.seed;
  auto stage = make_stage(device, whole);
  stage->initialize();
  OwnStream own(Stream::Body::fast);
  std::uint64_t adam_steps = 0;
  for (std::uint64_t step = 1; step <= spec.steps; ++step) {
    const auto batch = tokens.batch_for_step(step);
    std::vector<MicrobatchTokens> microbatches;
    for (const MicrobatchData& one : batch.microbatches)
      microbatches.push_back({one.tokens, one.targets, one.sequences, one.first_sample});
    StepInput input;
    input.step = step;
    input.adam_step = adam_steps + 1;
    input.learning_rate = learning_rate_at(spec.learning_rate, step);
    input.microbatches = microbatches;
    const StepOutcome outcome = run_step(*stage, own.stream, input);
    if (!outcome.skipped) ++adam_steps;
    trace.loss_bits.push_back(std::bit_cast<std::uint64_t>(outcome.loss));
    trace.norm_bits.push_back(std::bit_cast<std::uint64_t>(outcome.norm));
    trace.state_hash.push_back(state_hash_of(stage->state_hashes(own.stream)));
    trace.skipped.push_back(outcome.skipped);
  }
  if (gradients != nullptr)
    for (const NamedState& tensor : stage->state())
      (*gradients)[tensor.name] = values(tensor.gradient);
  return trace;
}

inline TensorValues reference_gradients(const RunSpec& spec, TokenSource& tokens) {
  TensorValues gradients;
  reference_trace(spec, tokens, &gradients);
  return gradients;
}

/// Makes the first moment after a step equal to that step's gradient.
inline void without_momentum(RunSpec& spec) {
  spec.optimizer.beta1 = 0;
  spec.optimizer.clip_norm = 0;
}

/// The checkpoint's first moments, of a run without momentum, are the gradients.
inline void check_last_gradients(const std::string& folder, const TensorValues& gradients) {
  const auto checkpoint = Checkpoint::open(folder);
  REQUIRE(checkpoint.ok());
  REQUIRE_FALSE(gradients.empty());
  for (const auto& [name, expected] : gradients) {
    INFO(name);
    std::vector<float> weight(expected.size()), first(expected.size()), second(expected.size());
    REQUIRE(checkpoint->read({name, weight, first, second}).ok());
    CHECK(first == expected);
  }
}

/// The same through run_training. A failure is the test's: its text is in `error`.
struct PlayedRun {
  Trace trace;
  std::vector<StepRow> rows;
  Plan plan;
  Timeline played;
  std::vector<EvaluationRow> evaluations;
  std::vector<RunEvent> events;
  RunOutcome outcome;
  std::string error;
  ErrorCode code = ErrorCode::internal;
};

inline PlayedRun play(const RunSpec& spec, RunOptions options, RunCallbacks callbacks = {}) {
  PlayedRun run;
  callbacks.on_plan = [&](const Plan& plan, const ClusterSpec&) -> Status {
    run.plan = plan;
    return {};
  };
  callbacks.on_step = [&, inner = callbacks.on_step](const StepRow& row) {
    run.rows.push_back(row);
    run.trace.loss_bits.push_back(row.loss_bits);
    run.trace.norm_bits.push_back(row.gradient_norm_bits);
    run.trace.state_hash.push_back(row.state_hash);
    run.trace.skipped.push_back(row.skipped);
    if (inner) inner(row);
  };
  callbacks.on_evaluation = [&](const EvaluationRow& row) { run.evaluations.push_back(row); };
  callbacks.on_trace = [&](const Timeline& timeline) { run.played = timeline; };
  callbacks.on_event = [&, inner = callbacks.on_event](const RunEvent& event) {
    run.events.push_back(event);
    if (inner) inner(event);
  };
  const auto outcome = run_training(spec, callbacks, options);
  if (outcome) {
    run.outcome = *outcome;
  } else {
    run.error = outcome.error().text;
    run.code = outcome.error().code;
  }
  return run;
}

/// The run's bits are the bare loop's; its memory is the plan's to the byte, and nothing is taken
/// within a step.
inline void check_run(const RunSpec& spec, const PlayedRun& run, const Trace& expected) {
  CHECK(run.error == "");
  REQUIRE(run.trace.loss_bits.size() == spec.steps);
  CHECK(run.trace.loss_bits == expected.loss_bits);
  CHECK(run.trace.norm_bits == expected.norm_bits);
  CHECK(run.trace.state_hash == expected.state_hash);
  CHECK(run.trace.skipped == expected.skipped);
  std::map<DeviceId, std::uint64_t> allocations;
  for (const StepRow& row : run.rows)
    for (const DeviceRow& device : row.devices) {
      CHECK(device.peak == run.plan.memory.at(device.device.index()).total());
      const auto first = allocations.emplace(device.device, device.allocations).first;
      CHECK(device.allocations == first->second);
    }
}

inline RunOptions with_tokens(const RunSpec& spec, std::uint32_t masked = 0) {
  RunOptions options;
  options.tokens = std::make_shared<RandomTokens>(spec.model, spec.shape, masked);
  return options;
}

}  // namespace troupe::test
