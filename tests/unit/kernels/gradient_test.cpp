// Gradients of whole models against finite differences of the loss, tensor by tensor, and the fast
// body against the naive one.
#include <cmath>
#include <string>

#include "kernels/step_loop.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

/// Weights with every parameter away from its special value (0 or 1), so that no term vanishes.
void scramble(Stage& stage, Stream& stream) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> noise(0, 0.15F);
  for (const NamedState& tensor : stage.state())
    for (std::uint64_t i = 0; i < tensor.weight.elements(); ++i)
      tensor.weight.as<float>()[i] += noise(random);
  stage.weights_changed(stream);
}

/// Mean loss without training; dropout must be 0.
double loss_at(Stage& stage, Stream& stream, const TokenBatch& batch) {
  return evaluate_mean(stage, stream, batch.microbatches);
}

void backward_only(Stage& stage, Stream& stream, const TokenBatch& batch) {
  stage.begin_step(stream, 1, trained_tokens(batch.microbatches));
  for (std::uint32_t m = 0; m < batch.microbatches.size(); ++m) {
    stage.forward(stream, MicrobatchId{m}, batch.microbatches[m], {});
    stage.backward(stream, MicrobatchId{m}, {}, {});
  }
  stage.norm(stream);  // adds the halves of a tied table
}

/// Slope of the loss along `direction` of one tensor: central differences at h and h / 2, with
/// their second-order term removed.
double slope(Stage& stage,
             Stream& stream,
             const TokenBatch& batch,
             const Tensor& weight,
             const std::vector<float>& direction,
             double step) {
  const std::vector<float> before = values(weight);
  const auto shifted = [&](double h) {
    for (std::size_t i = 0; i < before.size(); ++i)
      weight.as<float>()[i] = static_cast<float>(before[i] + h * direction[i]);
    return loss_at(stage, stream, batch);
  };
  const double wide = (shifted(step) - shifted(-step)) / (2 * step);
  const double narrow = (shifted(step / 2) - shifted(-step / 2)) / step;
  std::copy(before.begin(), before.end(), weight.as<float>());
  return (4 * narrow - wide) / 3;
}

double norm_of(const std::vector<float>& v) {
  double sum = 0;
  for (const float x : v) sum += double{x} * x;
  return std::sqrt(sum);
}

}  // namespace

TEST_CASE("gradients are the slopes of the loss in every tensor of both families") {
  const bool tied = GENERATE(true, false);
  const bool llama = GENERATE(true, false);
  ModelSpec model = llama ? tiny_llama(tied) : tiny_gpt2(tied);
  model.blocks = 2;
  PlainDevice device;
  OwnStream own(Stream::Body::naive);
  const auto stage = make_stage(device, whole_model(model, tiny_shape(2)));
  stage->initialize();
  scramble(*stage, own.stream);
  const TokenBatch batch(model, {2, 1}, 9, 3, 4);
  backward_only(*stage, own.stream, batch);
  std::mt19937_64 random(9);
  for (const NamedState& tensor : stage->state()) {
    INFO(tensor.name);
    const std::vector<float> gradient = values(tensor.gradient);
    const double size = norm_of(gradient);
    REQUIRE(size > 0);
    // Along the gradient the slope is its length.
    std::vector<float> direction = gradient;
    for (float& d : direction) d = static_cast<float>(d / size);
    CHECK(slope(*stage, own.stream, batch, tensor.weight, direction, 2e-2) ==
          Approx(size).epsilon(1e-3));
    // Across it, along a random sign pattern, it is the inner product.
    double inner = 0;
    for (std::size_t i = 0; i < direction.size(); ++i) {
      direction[i] =
          (random() % 2 == 0 ? 1.0F : -1.0F) / std::sqrt(static_cast<float>(direction.size()));
      inner += double{direction[i]} * gradient[i];
    }
    CHECK(std::abs(slope(*stage, own.stream, batch, tensor.weight, direction, 2e-2) - inner) <
          1e-3 * size + 2e-5);
  }
}

TEST_CASE("the fast body gives the gradients of the naive one") {
  const bool tied = GENERATE(true, false);
  const bool llama = GENERATE(true, false);
  const DType compute = GENERATE(DType::f32, DType::bf16);
  const ModelSpec model = llama ? tiny_llama(tied) : tiny_gpt2(tied);
  PlainDevice device;
  OwnStream naive(Stream::Body::naive);
  OwnStream fast(Stream::Body::fast, 2);
  const StageSpec spec = whole_model(model, tiny_shape(2, 2, compute));
  const auto one = make_stage(device, spec);
  const auto other = make_stage(device, spec);
  one->initialize();
  other->initialize();
  scramble(*one, naive.stream);
  scramble(*other, naive.stream);
  const TokenBatch batch(model, {2, 2}, 16, 3, 5);
  backward_only(*one, naive.stream, batch);
  backward_only(*other, fast.stream, batch);
  const auto expected = one->state();
  const auto got = other->state();
  const double tolerance = compute == DType::f32 ? 2e-5 : 4e-2;
  for (std::size_t t = 0; t < expected.size(); ++t) {
    INFO(expected[t].name);
    const std::vector<float> a = values(expected[t].gradient);
    std::vector<float> difference = values(got[t].gradient);
    for (std::size_t i = 0; i < a.size(); ++i) difference[i] -= a[i];
    CHECK(norm_of(difference) <= tolerance * norm_of(a));
  }
}
