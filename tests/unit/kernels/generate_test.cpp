#include "kernels/generate.h"

#include <cmath>
#include <limits>

#include "kernels/step_loop.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"

using namespace troupe;
using namespace troupe::test;

TEST_CASE("tokens are the likeliest, or drawn in proportion") {
  const std::vector<float> logits = {0, std::log(3.0F), std::log(3.0F), -50};
  GenerateSpec spec;
  CHECK(choose_token(logits, spec, 0) == 1);  // the first of equals
  spec.temperature = 1;
  spec.seed = 5;
  std::vector<int> counts(4);
  for (std::uint64_t n = 0; n < 7000; ++n)
    ++counts[static_cast<std::size_t>(choose_token(logits, spec, n))];
  // 1 to 3 to 3: 1000, 3000 and 3000, with a standard deviation below 42.
  CHECK(std::abs(counts[0] - 1000) < 200);
  CHECK(std::abs(counts[1] - 3000) < 200);
  CHECK(counts[3] == 0);
  CHECK(choose_token(logits, spec, 17) == choose_token(logits, spec, 17));
  spec.temperature = 0.05;  // 3^20 to 1 against the first
  for (std::uint64_t n = 0; n < 100; ++n) CHECK(choose_token(logits, spec, n) != 0);
}

TEST_CASE("a model that learnt a text recites it") {
  const ModelSpec model = tiny_llama();
  PlainDevice device;
  OwnStream own(Stream::Body::fast, 2);
  const auto stage = make_stage(device, whole_model(model, tiny_shape(1, 4)));
  stage->initialize();
  TokenBatch batch(model, {4}, 16, 1);
  for (std::size_t i = 0; i < 64; ++i) {  // counting up by threes, modulo 64
    batch.tokens[0][i] = static_cast<std::int32_t>((3 * (i % 16) + 11 * (i / 16)) % 64);
    batch.targets[0][i] = (batch.tokens[0][i] + 3) % 64;
  }
  for (std::uint64_t step = 1; step <= 80; ++step)
    run_step(*stage, own.stream, {step, step, 1e-2, batch.microbatches});

  // A second stage without gradients and moments, with the same weights.
  StageSpec spec = whole_model(model, tiny_shape(1, 1));
  spec.weights_only = true;
  PlainDevice small;
  const auto reader = make_stage(small, spec);
  const auto from = stage->state();
  const auto to = reader->state();
  for (std::size_t t = 0; t < from.size(); ++t)
    std::copy_n(from[t].weight.as<float>(), from[t].weight.elements(), to[t].weight.as<float>());
  reader->weights_changed(own.stream);
  const ArenaUse use = small.arena().use();
  CHECK(use.category_peak[static_cast<std::size_t>(MemoryCategory::gradients)] == 0);
  CHECK(use.category_peak[static_cast<std::size_t>(MemoryCategory::optimizer)] == 0);

  const std::vector<std::int32_t> prompt = {11, 14, 17};
  GenerateSpec wanted;
  wanted.max_new_tokens = 6;
  std::vector<std::int32_t> heard;
  const auto tokens = generate(*reader, own.stream, prompt, wanted,
                               [&](std::int32_t token) { heard.push_back(token); });
  REQUIRE(tokens.ok());
  CHECK(*tokens == std::vector<std::int32_t>{20, 23, 26, 29, 32, 35});
  CHECK(heard == *tokens);
  wanted.stop_token = 26;
  CHECK(generate(*reader, own.stream, prompt, wanted)->size() == 3);
  // Longer than the window of 16: the last tokens are seen.
  wanted.stop_token = -1;
  wanted.max_new_tokens = 30;
  CHECK(generate(*reader, own.stream, prompt, wanted)->size() == 30);
}

TEST_CASE("prompts that cannot be continued are refused") {
  PlainDevice device;
  OwnStream own(Stream::Body::fast);
  const auto stage = make_stage(device, whole_model(tiny_gpt2(), tiny_shape(1)));
  stage->initialize();
  const auto error_of = [&](const std::vector<std::int32_t>& prompt) {
    const auto tokens = generate(*stage, own.stream, prompt, {});
    return tokens.ok() ? std::string("none") : tokens.error().text;
  };
  CHECK(error_of({}) == "the prompt is empty; it needs at least one token");
  CHECK(error_of({1, 64}) == "prompt token 1 is 64; ids go from 0 to 63");
  CHECK(error_of({-1}) == "prompt token 0 is -1; ids go from 0 to 63");
  stage->state()[0].weight.as<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  const auto damaged = generate(*stage, own.stream, std::vector<std::int32_t>{0}, {});
  REQUIRE_FALSE(damaged.ok());
  CHECK(damaged.error().code == ErrorCode::not_finite);
}
