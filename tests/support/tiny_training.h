/// Small models, token batches and a device without a thread, for tests of the arithmetic.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "devices/arena.h"
#include "devices/compute_pool.h"
#include "devices/device.h"
#include "kernels/stage.h"
#include "planner/model.h"

namespace troupe::test {

/// Memory alone: tests run the arithmetic on a stream of their own.
class PlainDevice final : public Device {
 public:
  explicit PlainDevice(Arena::Backing backing = Arena::Backing::memory, Bytes cap = 1_GiB)
      : arena_("d0", cap, backing), pool_(1), stream_(Stream::Body::naive, &pool_) {}
  const DeviceSpec& spec() const override { return spec_; }
  Arena& arena() override { return arena_; }
  void submit(Work work) override {
    work.body(stream_);
    if (work.done) work.done({});
  }
  void drain() override {}

 private:
  DeviceSpec spec_;
  Arena arena_;
  ComputePool pool_;
  Stream stream_;
};

/// A stream with a pool of its own.
struct OwnStream {
  ComputePool pool;
  Stream stream;
  explicit OwnStream(Stream::Body body, std::uint32_t threads = 1)
      : pool(threads), stream(body, &pool) {}
};

inline ModelSpec tiny_gpt2(bool tied = true) {
  ModelSpec model;
  model.family = ModelFamily::gpt2;
  model.blocks = 4;
  model.width = 32;
  model.heads = 4;
  model.kv_heads = 4;
  model.ffn_width = 128;
  model.vocabulary = 64;
  model.context = 16;
  model.tied = tied;
  return model;
}

inline ModelSpec tiny_llama(bool tied = true) {
  ModelSpec model = tiny_gpt2(tied);
  model.family = ModelFamily::llama;
  model.kv_heads = 2;
  model.ffn_width = 80;
  return model;
}

inline StepShape tiny_shape(std::uint32_t microbatches,
                            std::uint32_t microbatch_size = 2,
                            DType compute = DType::f32) {
  return {microbatches, microbatch_size, 16, microbatches * microbatch_size, compute};
}

/// Random tokens of one step, cut into microbatches. `masked`: every so-manieth target is -1.
struct TokenBatch {
  std::vector<std::vector<std::int32_t>> tokens, targets;
  std::vector<MicrobatchTokens> microbatches;

  TokenBatch(const ModelSpec& model,
             const std::vector<std::uint32_t>& sequences,
             std::uint32_t length,
             std::uint64_t seed,
             std::uint32_t masked = 0) {
    std::mt19937_64 random(seed);
    std::uint64_t sample = 0;
    for (const std::uint32_t count : sequences) {
      auto& in = tokens.emplace_back();
      auto& out = targets.emplace_back();
      for (std::uint32_t i = 0; i < count * length; ++i) {
        in.push_back(static_cast<std::int32_t>(random() % model.vocabulary));
        const bool hidden = masked > 0 && random() % masked == 0;
        out.push_back(hidden ? -1 : static_cast<std::int32_t>(random() % model.vocabulary));
      }
      MicrobatchTokens one;
      one.sequences = count;
      one.first_sample = sample;
      microbatches.push_back(one);
      sample += count;
    }
    for (std::size_t m = 0; m < microbatches.size(); ++m) {
      microbatches[m].tokens = tokens[m];
      microbatches[m].targets = targets[m];
    }
  }
};

inline StageSpec whole_model(const ModelSpec& model, const StepShape& shape) {
  StageSpec spec;
  spec.model = model;
  spec.shape = shape;
  spec.layers = {0, layer_count(model)};
  spec.seed = 7;
  return spec;
}

/// A stage or the reason why not.
inline std::unique_ptr<Stage> make_stage(Device& device, const StageSpec& spec) {
  auto stage = Stage::create(device, spec);
  EXPECTS(stage.ok());
  return std::move(*stage);
}

/// The elements of an f32 tensor.
inline std::vector<float> values(const Tensor& tensor) {
  const float* data = tensor.as<float>();
  return std::vector<float>(data, data + tensor.elements());
}

}  // namespace troupe::test
