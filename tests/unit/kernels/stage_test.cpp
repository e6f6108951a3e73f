#include "kernels/stage.h"

#include <cmath>
#include <limits>

#include "kernels/step_loop.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

std::unique_ptr<Stage> started(Device& device, const StageSpec& spec) {
  auto stage = make_stage(device, spec);
  stage->initialize();
  return stage;
}

std::uint64_t hash(Stage& stage, Stream& stream) {
  return state_hash_of(stage.state_hashes(stream));
}

StepInput input_of(const TokenBatch& batch, std::uint64_t step = 1) {
  return {step, step, 1e-2, batch.microbatches};
}

/// Largest difference of gradients relative to the largest gradient of the tensor.
double gradient_distance(Stage& a, Stage& b) {
  double worst = 0;
  const auto left = a.state();
  const auto right = b.state();
  for (std::size_t t = 0; t < left.size(); ++t) {
    const auto x = values(left[t].gradient);
    const auto y = values(right[t].gradient);
    double largest = 1e-30;
    double difference = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      largest = std::max(largest, std::abs(double{x[i]}));
      difference = std::max(difference, std::abs(double{x[i]} - y[i]));
    }
    worst = std::max(worst, difference / largest);
  }
  return worst;
}

}  // namespace

TEST_CASE("a stage of layers that the model does not have is refused") {
  PlainDevice device;
  StageSpec spec = whole_model(tiny_gpt2(), tiny_shape(1));
  spec.layers = {3, 3};
  CHECK_FALSE(Stage::create(device, spec).ok());
  spec.layers = {2, 7};
  const auto refused = Stage::create(device, spec);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().text.find("[2, 7)") != std::string::npos);
}

TEST_CASE("initial weights depend on seed and name alone") {
  const ModelSpec model = tiny_gpt2();
  PlainDevice device;
  const auto whole = started(device, whole_model(model, tiny_shape(1)));
  StageSpec part = whole_model(model, tiny_shape(1));
  part.layers = {3, layer_count(model)};
  const auto tail = started(device, part);
  const auto all = whole->state();
  std::size_t compared = 0;
  for (const NamedState& mine : tail->state()) {
    CHECK(values(mine.weight) == values(all[mine.tensor].weight));
    CHECK(mine.shared_copy == (mine.tensor == 0));
    ++compared;
  }
  CHECK(compared == 12 + 12 + 2 + 1);  // two blocks, the final norm, the table's copy
  part.seed = 8;
  CHECK(values(started(device, part)->state().front().weight) != values(all[0].weight));
}

TEST_CASE("L040 L042 cutting a batch into microbatches keeps loss, norm and gradients") {
  const ModelSpec model = GENERATE(tiny_gpt2(), tiny_llama());
  PlainDevice device;
  OwnStream own(Stream::Body::naive);
  const TokenBatch whole(model, {8}, 16, 4, 3);
  const auto one = started(device, whole_model(model, tiny_shape(1, 8)));
  const StepOutcome expected = run_step(*one, own.stream, input_of(whole));
  for (const std::uint32_t pieces : {2u, 8u}) {
    TokenBatch cut(model, std::vector<std::uint32_t>(pieces, 8 / pieces), 16, 4);
    // The same tokens and targets, in the same order.
    std::size_t at = 0;
    for (std::uint32_t m = 0; m < pieces; ++m)
      for (std::size_t i = 0; i < cut.tokens[m].size(); ++i, ++at) {
        cut.tokens[m][i] = whole.tokens[0][at];
        cut.targets[m][i] = whole.targets[0][at];
      }
    const auto many = started(device, whole_model(model, tiny_shape(pieces, 8 / pieces)));
    const StepOutcome got = run_step(*many, own.stream, input_of(cut));
    CHECK(got.trained_tokens == expected.trained_tokens);
    CHECK(got.loss == Approx(expected.loss).epsilon(1e-6));
    CHECK(got.norm == Approx(expected.norm).epsilon(1e-6));
    CHECK(gradient_distance(*one, *many) < 1e-5);
  }
}

TEST_CASE("L044 microbatches with 3 and 29 trained tokens give the gradient of 32 tokens") {
  const ModelSpec model = tiny_gpt2();
  PlainDevice device;
  OwnStream own(Stream::Body::naive);
  TokenBatch cut(model, {2, 2}, 16, 4);
  for (std::size_t i = 3; i < 32; ++i) cut.targets[0][i] = -1;
  for (std::size_t i = 29; i < 32; ++i) cut.targets[1][i] = -1;
  TokenBatch whole(model, {4}, 16, 4);
  for (std::size_t i = 0; i < 64; ++i) {
    whole.tokens[0][i] = cut.tokens[i / 32][i % 32];
    whole.targets[0][i] = cut.targets[i / 32][i % 32];
  }
  const auto a = started(device, whole_model(model, tiny_shape(2, 2)));
  const auto b = started(device, whole_model(model, tiny_shape(1, 4)));
  const StepOutcome one = run_step(*a, own.stream, input_of(cut));
  const StepOutcome other = run_step(*b, own.stream, input_of(whole));
  CHECK(one.trained_tokens == 32);
  CHECK(one.loss == Approx(other.loss).epsilon(1e-6));
  CHECK(gradient_distance(*a, *b) < 1e-5);
}

TEST_CASE("L044 a window without a trained token gives zero, not NaN, and no update") {
  PlainDevice device;
  OwnStream own(Stream::Body::fast);
  const ModelSpec model = tiny_gpt2();
  const auto stage = started(device, whole_model(model, tiny_shape(2)));
  TokenBatch batch(model, {2, 2}, 16, 4);
  const std::uint64_t before = hash(*stage, own.stream);
  SECTION("one of two") {
    std::fill(batch.targets[0].begin(), batch.targets[0].end(), -1);
    const StepOutcome outcome = run_step(*stage, own.stream, input_of(batch));
    CHECK(std::isfinite(outcome.loss));
    CHECK(outcome.loss > 0);
    CHECK_FALSE(outcome.skipped);
    CHECK(hash(*stage, own.stream) != before);
  }
  SECTION("both") {
    for (auto& targets : batch.targets) std::fill(targets.begin(), targets.end(), -1);
    const StepOutcome outcome = run_step(*stage, own.stream, input_of(batch));
    CHECK(outcome.loss == 0);
    CHECK(outcome.norm == 0);
    CHECK(outcome.skipped);
    CHECK(hash(*stage, own.stream) == before);
    for (const NamedState& tensor : stage->state())
      for (const float g : values(tensor.gradient)) REQUIRE(g == 0);
  }
}

TEST_CASE("a gradient that is not finite changes neither weights nor moments") {
  PlainDevice device;
  OwnStream own(Stream::Body::fast);
  const ModelSpec model = tiny_gpt2();
  const auto stage = started(device, whole_model(model, tiny_shape(1)));
  const TokenBatch batch(model, {2}, 16, 4);
  CHECK_FALSE(run_step(*stage, own.stream, input_of(batch, 1)).skipped);
  const auto middle = stage->state()[5];
  const float kept = middle.weight.as<float>()[0];
  middle.weight.as<float>()[0] = std::numeric_limits<float>::infinity();
  stage->weights_changed(own.stream);
  const std::uint64_t before = hash(*stage, own.stream);
  const StepOutcome outcome = run_step(*stage, own.stream, input_of(batch, 2));
  CHECK(outcome.skipped);
  CHECK_FALSE(std::isfinite(outcome.norm));
  CHECK(hash(*stage, own.stream) == before);
  middle.weight.as<float>()[0] = kept;
  stage->weights_changed(own.stream);
  CHECK_FALSE(run_step(*stage, own.stream, input_of(batch, 3)).skipped);
}

TEST_CASE("L036 a split backward has the bits of the fused one") {
  const bool llama = GENERATE(false, true);
  const DType compute = GENERATE(DType::f32, DType::bf16);
  ModelSpec model = llama ? tiny_llama() : tiny_gpt2();
  model.dropout = 0.1;
  PlainDevice device;
  OwnStream own(Stream::Body::fast, 2);
  StageSpec spec = whole_model(model, tiny_shape(3, 2, compute));
  const auto fused = started(device, spec);
  spec.split_backward = true;
  spec.in_flight = 3;
  spec.deferred = 3;
  const auto split = started(device, spec);
  const TokenBatch batch(model, {2, 1, 2}, 16, 4, 6);
  run_step(*fused, own.stream, input_of(batch));
  split->begin_step(own.stream, 1, trained_tokens(batch.microbatches));
  for (std::uint32_t m = 0; m < 3; ++m)
    split->forward(own.stream, MicrobatchId{m}, batch.microbatches[m], {});
  for (std::uint32_t m = 0; m < 3; ++m) split->backward_input(own.stream, MicrobatchId{m}, {}, {});
  for (std::uint32_t m = 0; m < 3; ++m) split->backward_weight(own.stream, MicrobatchId{m});
  split->norm(own.stream);
  const auto expected = fused->state();
  const auto got = split->state();
  for (std::size_t t = 0; t < expected.size(); ++t) {
    INFO(expected[t].name);
    CHECK(values(got[t].gradient) == values(expected[t].gradient));
  }
}

TEST_CASE("dropout changes training alone, with the step and not with the cut") {
  ModelSpec model = tiny_gpt2();
  PlainDevice device;
  OwnStream own(Stream::Body::naive);
  const TokenBatch batch(model, {2, 2}, 16, 4);
  const auto plain = started(device, whole_model(model, tiny_shape(2)));
  const double clean = evaluate_mean(*plain, own.stream, batch.microbatches);
  model.dropout = 0.3;
  const auto loss_of_step = [&](std::uint64_t step) {
    const auto stage = started(device, whole_model(model, tiny_shape(2)));
    CHECK(evaluate_mean(*stage, own.stream, batch.microbatches) == clean);
    return run_step(*stage, own.stream, input_of(batch, step)).loss;
  };
  const double first = loss_of_step(1);
  CHECK(first != Approx(clean).epsilon(1e-9));
  CHECK(loss_of_step(1) == first);
  CHECK(loss_of_step(2) != first);
  // The same samples as one microbatch have the same masks.
  TokenBatch whole(model, {4}, 16, 4);
  for (std::size_t i = 0; i < 64; ++i) {
    whole.tokens[0][i] = batch.tokens[i / 32][i % 32];
    whole.targets[0][i] = batch.targets[i / 32][i % 32];
  }
  const auto one = started(device, whole_model(model, tiny_shape(1, 4)));
  CHECK(run_step(*one, own.stream, input_of(whole, 1)).loss == Approx(first).epsilon(1e-6));
}

TEST_CASE("a step takes nothing from the arena") {
  PlainDevice device;
  OwnStream own(Stream::Body::fast);
  const ModelSpec model = tiny_gpt2();
  const auto stage = started(device, whole_model(model, tiny_shape(2)));
  const TokenBatch batch(model, {2, 2}, 16, 4);
  const std::uint64_t before = device.arena().use().allocations;
  run_step(*stage, own.stream, input_of(batch));
  evaluate_mean(*stage, own.stream, batch.microbatches);
  CHECK(device.arena().use().allocations == before);
}

TEST_CASE("logits of the last position say what the loss says") {
  const ModelSpec model = GENERATE(tiny_gpt2(), tiny_llama(false));
  PlainDevice device;
  OwnStream own(Stream::Body::fast);
  const auto stage = started(device, whole_model(model, tiny_shape(1)));
  TokenBatch batch(model, {2}, 7, 4);
  for (std::size_t i = 0; i < 14; ++i)
    if (i % 7 != 6) batch.targets[0][i] = -1;  // the last position of each alone
  std::vector<float> data(2 * model.vocabulary);
  const Tensor out =
      make_tensor(reinterpret_cast<std::byte*>(data.data()), DType::f32, {2, model.vocabulary});
  stage->logits(own.stream, batch.microbatches[0], {}, out);
  double expected = 0;
  for (std::size_t s = 0; s < 2; ++s) {
    double sum = 0;
    for (std::size_t v = 0; v < model.vocabulary; ++v)
      sum += std::exp(double{data[s * model.vocabulary + v]});
    const auto target = static_cast<std::size_t>(batch.targets[0][s * 7 + 6]);
    expected += std::log(sum) - data[s * model.vocabulary + target];
  }
  CHECK(stage->evaluate(own.stream, batch.microbatches[0], {}, {}) ==
        Approx(expected).epsilon(1e-5));
}

TEST_CASE("the loss of a repetitive text falls") {
  const bool llama = GENERATE(false, true);
  const DType compute = GENERATE(DType::f32, DType::bf16);
  const ModelSpec model = llama ? tiny_llama() : tiny_gpt2();
  PlainDevice device;
  OwnStream own(Stream::Body::fast, 2);
  const auto stage = started(device, whole_model(model, tiny_shape(2, 2, compute)));
  TokenBatch batch(model, {2, 2}, 16, 4);
  const std::string text = "the cat sat on the mat. ";
  double first = 0;
  double last = 0;
  for (std::uint64_t step = 1; step <= 60; ++step) {
    for (std::size_t m = 0; m < 2; ++m)
      for (std::size_t i = 0; i < 32; ++i) {
        const std::size_t at = i % 16 + 5 * (2 * m + i / 16) + step;
        const auto token = [&](std::size_t k) { return text[k % text.size()] % 64; };
        batch.tokens[m][i] = token(at);
        batch.targets[m][i] = token(at + 1);
      }
    last = run_step(*stage, own.stream, input_of(batch, step)).loss;
    if (step == 1) first = last;
  }
  CHECK(first == Approx(std::log(64)).epsilon(0.05));  // nothing known yet
  CHECK(last < 1.0);                                   // its letters alone have an entropy of 2.1
}
