#include "kernels/step_loop.h"

#include <algorithm>

namespace troupe {

std::uint64_t trained_tokens(std::span<const MicrobatchTokens> microbatches) {
  std::uint64_t count = 0;
  for (const MicrobatchTokens& one : microbatches)
    count += static_cast<std::uint64_t>(std::count_if(
        one.targets.begin(), one.targets.end(), [](std::int32_t target) { return target >= 0; }));
  return count;
}

StepOutcome run_step(Stage& stage, Stream& stream, const StepInput& input) {
  StepOutcome outcome;
  outcome.trained_tokens = trained_tokens(input.microbatches);
  stage.begin_step(stream, input.step, outcome.trained_tokens);
  for (std::uint32_t i = 0; i < input.microbatches.size(); ++i) {
    stage.forward(stream, MicrobatchId{i}, input.microbatches[i], {});
    outcome.loss += stage.loss(MicrobatchId{i});
    stage.backward(stream, MicrobatchId{i}, {}, {});
  }
  const UpdateDecision decision = decide_update_in_order(
      stage.norm(stream), stage.spec().optimizer.clip_norm, outcome.trained_tokens);
  stage.update(stream, {input.step, input.adam_step, input.learning_rate, decision.gradient_scale,
                        decision.skip});
  outcome.norm = decision.norm;
  outcome.skipped = decision.skip;
  return outcome;
}

double evaluate_mean(Stage& stage, Stream& stream, std::span<const MicrobatchTokens> microbatches) {
  double sum = 0;
  for (const MicrobatchTokens& one : microbatches) sum += stage.evaluate(stream, one, {}, {});
  const std::uint64_t tokens = trained_tokens(microbatches);
  return tokens == 0 ? 0 : sum / static_cast<double>(tokens);
}

}  // namespace troupe
