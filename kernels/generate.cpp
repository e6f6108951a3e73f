#include "kernels/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/random.h"

namespace troupe {
namespace {

Status check_tokens(const ModelSpec& model, std::span<const std::int32_t> tokens) {
  if (tokens.empty())
    return Error{ErrorCode::invalid_input, "the prompt is empty; it needs at least one token"};
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || static_cast<std::uint32_t>(tokens[i]) >= model.vocabulary)
      return Error{ErrorCode::invalid_input,
                   fmt::format("prompt token {} is {}; ids go from 0 to {}", i, tokens[i],
                               model.vocabulary - 1)};
  return {};
}

Tensor logits_tensor(std::vector<float>& logits) {
  return make_tensor(reinterpret_cast<std::byte*>(logits.data()), DType::f32, {1, logits.size()});
}

/// Fills `logits` (vocabulary).
void compute_logits(Stage& stage,
                    Stream& stream,
                    std::span<const std::int32_t> tokens,
                    std::vector<float>& logits) {
  const std::size_t window = stage.spec().shape.sequence_length;
  if (tokens.size() > window) tokens = tokens.last(window);
  MicrobatchTokens seen;
  seen.tokens = tokens;
  seen.sequences = 1;
  stage.logits(stream, seen, {}, logits_tensor(logits));
}

Status check_finite(std::span<const float> logits) {
  const auto wrong =
      std::find_if(logits.begin(), logits.end(), [](float value) { return !std::isfinite(value); });
  if (wrong != logits.end())
    return Error{ErrorCode::not_finite,
                 fmt::format("the logit of token {} is {}; the weights may be damaged",
                             wrong - logits.begin(), *wrong)};
  return {};
}

/// `next(tokens, logits)` fills the logits after the last of all tokens so far.
template <class Next>
Result<std::vector<std::int32_t>> generate_with(const ModelSpec& model,
                                                std::span<const std::int32_t> prompt,
                                                const GenerateSpec& spec,
                                                const std::function<void(std::int32_t)>& on_token,
                                                Next&& next) {
  TROUPE_TRY(check_tokens(model, prompt));
  std::vector<std::int32_t> tokens(prompt.begin(), prompt.end());
  std::vector<float> logits(model.vocabulary);
  for (std::uint64_t n = 0; n < spec.max_new_tokens; ++n) {
    next(std::span<const std::int32_t>(tokens), logits);
    TROUPE_TRY(check_finite(logits));
    tokens.push_back(choose_token(logits, spec, n));
    if (on_token) on_token(tokens.back());
    if (tokens.back() == spec.stop_token) break;
  }
  return std::vector<std::int32_t>(tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()),
                                   tokens.end());
}

/// Uniform in [0, 1) with 53 bits.
double uniform(std::uint64_t seed, std::uint64_t n) {
  const kernels::PhiloxCounter words = kernels::philox4x32(
      {static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(n >> 32), 0, 0x67656e65U},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const std::uint64_t bits = (std::uint64_t{words[0]} << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace

std::int32_t choose_token(std::span<const float> logits,
                          const GenerateSpec& spec,
                          std::uint64_t n) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (spec.temperature <= 0) return static_cast<std::int32_t>(best - logits.begin());
  const auto weight = [&](float logit) {
    return std::exp((double{logit} - double{*best}) / spec.temperature);
  };
  double total = 0;
  for (const float logit : logits) total += weight(logit);
  const double drawn = uniform(spec.seed, n) * total;
  double sum = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    sum += weight(logits[i]);
    if (drawn < sum) return static_cast<std::int32_t>(i);
  }
  return static_cast<std::int32_t>(best - logits.begin());
}

Result<std::vector<float>> next_logits(Stage& stage,
                                       Stream& stream,
                                       std::span<const std::int32_t> tokens) {
  TROUPE_TRY(check_tokens(stage.spec().model, tokens));
  std::vector<float> logits(stage.spec().model.vocabulary);
  compute_logits(stage, stream, tokens, logits);
  TROUPE_TRY(check_finite(logits));
  return logits;
}

Result<std::vector<std::int32_t>> generate(Stage& stage,
                                           Stream& stream,
                                           std::span<const std::int32_t> prompt,
                                           const GenerateSpec& spec,
                                           const std::function<void(std::int32_t)>& on_token) {
  return generate_with(stage.spec().model, prompt, spec, on_token,
                       [&](std::span<const std::int32_t> tokens, std::vector<float>& logits) {
                         compute_logits(stage, stream, tokens, logits);
                       });
}

Result<std::vector<std::int32_t>> generate(Decoder& decoder,
                                           Stream& stream,
                                           std::span<const std::int32_t> prompt,
                                           const GenerateSpec& spec,
                                           const std::function<void(std::int32_t)>& on_token) {
  Stage& stage = decoder.stage();
  decoder.clear();
  return generate_with(stage.spec().model, prompt, spec, on_token,
                       [&](std::span<const std::int32_t> tokens, std::vector<float>& logits) {
                         // A window that has moved is another sequence: all positions change.
                         if (tokens.size() > stage.spec().shape.sequence_length)
                           return compute_logits(stage, stream, tokens, logits);
                         decoder.append(stream, tokens.subspan(decoder.length()),
                                        logits_tensor(logits));
                       });
}

}  // namespace troupe
