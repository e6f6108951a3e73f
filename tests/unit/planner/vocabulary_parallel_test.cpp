/// Vocabulary parallelism: passes, barriers, memory and time.
#include "planner/vocabulary_parallel.h"

#include <algorithm>
#include <map>
#include <random>

#include "tests/support/catch.h"

using namespace troupe;

namespace {

VocabularyProblem equal_stages(std::uint32_t stages,
                               std::uint32_t microbatches,
                               VocabularyBarriers barriers) {
  VocabularyProblem problem;
  problem.forward.assign(stages, 4);
  problem.backward.assign(stages, 8);
  problem.score = 1;
  problem.tail = 2;
  problem.transfer.assign(stages - 1, 0);
  problem.microbatches = microbatches;
  problem.barriers = barriers;
  return problem;
}

/// Every pass once, no two at a time on a stage, nothing before what it needs.
void check_run(const VocabularyProblem& problem, const VocabularyRun& run) {
  const auto p = static_cast<std::uint32_t>(problem.forward.size());
  std::map<std::string, VocabularyRun::Span> spans;
  for (const auto& lane : run.stages) {
    Seconds before = 0;
    for (const auto& span : lane) {
      CHECK(span.begin >= before);
      before = span.end;
      CHECK(spans.emplace(to_string(span.pass), span).second);
    }
  }
  REQUIRE(spans.size() == std::size_t{4} * p * problem.microbatches);
  const auto span = [&](VocabularyOp op, std::uint32_t s, std::uint32_t m) {
    return spans.at(to_string(VocabularyPass{op, s, m}));
  };
  using enum VocabularyOp;
  const bool two = problem.barriers == VocabularyBarriers::two;
  for (std::uint32_t m = 0; m < problem.microbatches; ++m) {
    Seconds scored = 0, tailed = 0;
    for (std::uint32_t s = 0; s < p; ++s) {
      scored = std::max(scored, span(score, s, m).end);
      tailed = std::max(tailed, span(tail, s, m).end);
    }
    for (std::uint32_t s = 0; s < p; ++s) {
      CHECK(span(score, s, m).begin >=
            span(forward, p - 1, m).end + (s + 1 < p ? problem.broadcast : 0) - 1e-9);
      CHECK(span(tail, s, m).begin >= scored + problem.barrier - 1e-9);
      if (s == 0) continue;
      CHECK(span(forward, s, m).begin >= span(forward, s - 1, m).end + problem.transfer[s - 1]);
      CHECK(span(backward, s - 1, m).begin >= span(backward, s, m).end + problem.transfer[s - 1]);
    }
    CHECK(span(backward, p - 1, m).begin >=
          (two ? tailed + problem.reduce : scored + std::max(problem.barrier, problem.reduce)) -
              1e-9);
  }
}

}  // namespace

TEST_CASE("vocabulary parallelism: passes wait for what they need, memory keeps to its limit") {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto any = [&](std::uint32_t most) { return static_cast<double>(random() % most); };
    const auto p = static_cast<std::uint32_t>(1 + random() % 5);
    VocabularyProblem problem =
        equal_stages(p, static_cast<std::uint32_t>(1 + random() % 12),
                     random() % 2 == 0 ? VocabularyBarriers::one : VocabularyBarriers::two);
    for (std::uint32_t s = 0; s < p; ++s) {
      problem.forward[s] = 1 + any(6);
      problem.backward[s] = 1 + any(12);
    }
    for (Seconds& seconds : problem.transfer) seconds = 0.25 * any(4);
    problem.score = any(3);
    problem.tail = any(3);
    problem.broadcast = 0.5 * any(3);
    problem.barrier = 0.5 * any(3);
    problem.reduce = 0.5 * any(3);
    const VocabularyRun run = play_vocabulary_parallel(problem);
    check_run(problem, run);
    for (std::uint32_t s = 0; s < p; ++s)
      CHECK(run.in_flight[s] <=
            std::min(problem.microbatches, p - s + static_cast<std::uint32_t>(problem.barriers)));
  }
}

TEST_CASE("vocabulary parallelism: equal stages hardly wait once they have begun") {
  for (const auto barriers : {VocabularyBarriers::one, VocabularyBarriers::two}) {
    const VocabularyProblem problem = equal_stages(8, 40, barriers);
    const VocabularyRun run = play_vocabulary_parallel(problem);
    // 40 microbatches of 4 + 8 + 1 + 2 s, and filling and draining of 7 stages.
    CHECK(run.seconds >= 40 * 15);
    CHECK(run.seconds <= 1.1 * (40 * 15 + 7 * 12));
    // The price: more microbatches in flight than 1F1B's 8 on the first stage.
    CHECK(run.in_flight[0] == 8 + static_cast<std::uint32_t>(barriers));
  }
}

TEST_CASE("vocabulary parallelism: a single stage does one thing after the other") {
  const VocabularyProblem problem = equal_stages(1, 10, VocabularyBarriers::two);
  CHECK(play_vocabulary_parallel(problem).seconds == Approx(10 * 15));
}

TEST_CASE("vocabulary parallelism: communication is hidden until it is longer than a microbatch") {
  VocabularyProblem problem = equal_stages(8, 40, VocabularyBarriers::two);
  const Seconds still = play_vocabulary_parallel(problem).seconds;
  problem.broadcast = problem.barrier = problem.reduce = 0.25;
  CHECK(play_vocabulary_parallel(problem).seconds <= 1.05 * still);
  problem.barrier = 300;  // ten microbatches on their way take 426 s instead of 150
  CHECK(play_vocabulary_parallel(problem).seconds > 1.5 * still);
}

TEST_CASE("vocabulary parallelism: the output layer's work is shared out, not changed") {
  BlockShape shape;
  shape.hidden = 1024;
  shape.heads = shape.kv_heads = 16;
  shape.ffn = 4096;
  shape.sequence = 2048;
  shape.vocabulary = 128 * 1024;
  const AcceleratorRates rates = a100_rates();
  const LayerSeconds whole = split_output_seconds(shape, {}, rates);
  const Seconds all = whole.forward + whole.backward_input + whole.backward_weight;
  CHECK(all == Approx(ops_seconds(output_ops(shape, {}), rates)));
  for (const auto barriers : {VocabularyBarriers::one, VocabularyBarriers::two}) {
    const VocabularySeconds one = vocabulary_seconds(shape, {}, rates, 1, barriers);
    CHECK(one.score + one.tail == Approx(all));
    const VocabularySeconds eighth = vocabulary_seconds(shape, {}, rates, 8, barriers);
    CHECK(eighth.score + eighth.tail >= all / 8);
    CHECK(eighth.score + eighth.tail <= 1.1 * all / 8);
  }
  // One barrier: S makes the gradient of the output, T that of the weights alone.
  CHECK(vocabulary_seconds(shape, {}, rates, 1, VocabularyBarriers::one).tail ==
        Approx(whole.backward_weight));
}

TEST_CASE("a block's F, I and W are all that it computes, and W its weight gradients") {
  BlockShape shape;
  shape.hidden = 2048;
  shape.heads = shape.kv_heads = 16;
  shape.ffn = 8192;
  shape.sequence = 1024;
  const AcceleratorRates rates = a100_rates();
  const BlockOps ops = block_ops(shape, {});
  const LayerSeconds split = split_block_seconds(shape, {}, rates);
  CHECK(split.forward ==
        Approx(ops_seconds(ops.forward, rates) + ops_seconds(ops.attention_forward, rates)));
  CHECK(split.backward_input + split.backward_weight ==
        Approx(ops_seconds(ops.backward, rates) + ops_seconds(ops.attention_backward, rates)));
  // Four products of 12 h^2 weights in all, at most at the peak's achievable share.
  const double flops = 2.0 * 1024 * 12 * 2048 * 2048;
  CHECK(split.backward_weight >= flops / (rates.peak * rates.achievable));
  CHECK(split.backward_weight <= 2 * flops / (rates.peak * rates.achievable));
}
