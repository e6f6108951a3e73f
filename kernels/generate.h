/// Text from a trained model, token by token: greedy, or sampled with a temperature.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/decoder.h"
#include "kernels/stage.h"

namespace troupe {

struct GenerateSpec {
  std::uint32_t max_new_tokens = 1;
  double temperature = 0;        ///< 0: the likeliest token, the smallest id among equals
  std::uint64_t seed = 0;        ///< the n-th new token depends on (seed, n) and the logits alone
  std::int32_t stop_token = -1;  ///< ends after it was produced; -1: none
};

/// The token that `logits` (vocabulary) give at the n-th draw. Promise: logits are finite.
std::int32_t choose_token(std::span<const float> logits, const GenerateSpec& spec, std::uint64_t n);

/// New tokens after `prompt`. `stage` holds all layers. Beyond the stage's sequence length, the
/// last tokens that fit are seen, as a sequence of their own. `on_token` is called with each new
/// token; null: nobody. Errors: an empty prompt, ids outside of the vocabulary, logits that are not
/// finite. Every token computes its whole prefix again: the definition of what the decoder gives.
Result<std::vector<std::int32_t>> generate(Stage& stage,
                                           Stream& stream,
                                           std::span<const std::int32_t> prompt,
                                           const GenerateSpec& spec,
                                           const std::function<void(std::int32_t)>& on_token = {});

/// The same tokens, without computing the prefix again while the sequence fits. What the decoder
/// has seen before is forgotten.
Result<std::vector<std::int32_t>> generate(Decoder& decoder,
                                           Stream& stream,
                                           std::span<const std::int32_t> prompt,
                                           const GenerateSpec& spec,
                                           const std::function<void(std::int32_t)>& on_token = {});

/// Logits (vocabulary) after the last of `tokens`. Errors as for generate.
Result<std::vector<float>> next_logits(Stage& stage,
                                       Stream& stream,
                                       std::span<const std::int32_t> tokens);

}  // namespace troupe
