// Losses and gradient norms of 20 steps against PyTorch's: tests/parity/train_reference.py made the
// golden files from the same initial weights and the same batches.
#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "actors/data/batches.h"
#include "apps/run_config.h"
#include "devices/device.h"
#include "kernels/step_loop.h"
#include "tests/support/catch.h"

namespace {

using namespace troupe;

constexpr double tolerance = 2e-5;

bool near(double ours, double reference) {
  return std::abs(ours - reference) <= tolerance * std::abs(reference);
}

/// Trains on the configuration's first device alone.
std::vector<StepOutcome> train(const RunSpec& run) {
  auto data = Dataset::open(run.data, run.shape, run.model.vocabulary, run.seed);
  REQUIRE(data);
  auto device = open_device(run.cluster.devices.at(0), {});
  REQUIRE(device);
  StageSpec spec;
  spec.model = run.model;
  spec.shape = run.shape;
  spec.layers = {0, layer_count(run.model)};
  spec.optimizer = run.optimizer;
  spec.seed = run.seed;
  auto stage = Stage::create(**device, spec);
  REQUIRE(stage);
  (*stage)->initialize();
  std::vector<StepOutcome> outcomes(run.steps);
  for (std::uint64_t step = 1; step <= run.steps; ++step) {
    const TokenBatch batch = data->batch_for_step(step);
    std::vector<MicrobatchTokens> microbatches;
    for (const auto& m : batch.microbatches) {
      microbatches.push_back({m.tokens, m.targets, m.sequences, m.first_sample});
    }
    const double rate = learning_rate_at(run.learning_rate, step);
    (*device)->submit(
        {[&](Stream& stream) {
           outcomes[step - 1] = run_step(**stage, stream, {step, step, rate, microbatches});
         },
         0,
         {}});
    (*device)->drain();
  }
  return outcomes;
}

void compare_with_pytorch(const std::string& name) {
  const std::string folder = std::string(TROUPE_SOURCE_DIR) + "/tests/parity/";
  const std::string cache = std::string(TROUPE_BINARY_DIR) + "/parity-token-cache";
  const auto loaded = load_config(folder + name + ".toml", {{"data.cache_folder=" + cache}, true});
  REQUIRE(loaded);
  std::ifstream in(folder + name + ".golden.json");
  const auto golden = nlohmann::json::parse(in);
  const auto& steps = golden.at("steps");
  const auto outcomes = train(loaded->spec);
  REQUIRE(outcomes.size() == steps.size());
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const double loss = steps[i].at("loss");
    const double norm = steps[i].at("gradient_norm");
    INFO(name << " step " << i + 1 << ": loss " << outcomes[i].loss << ", PyTorch " << loss
              << "; norm " << outcomes[i].norm << ", PyTorch " << norm);
    CHECK(near(outcomes[i].loss, loss));
    CHECK(near(outcomes[i].norm, norm));
  }
}

}  // namespace

TEST_CASE("GPT-2 trains as in PyTorch, losses and norms of 20 steps within 2e-5") {
  compare_with_pytorch("gpt2");
}

TEST_CASE("Llama trains as in PyTorch, losses and norms of 20 steps within 2e-5") {
  compare_with_pytorch("llama");
}
