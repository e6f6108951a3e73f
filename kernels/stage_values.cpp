#include <xxhash.h>

#include <algorithm>
#include <cmath>

#include "kernels/stage.h"

namespace troupe {

UpdateDecision decide_update(std::vector<TensorNorm> norms,
                             double clip_norm,
                             std::uint64_t trained_tokens) {
  std::sort(norms.begin(), norms.end(),
            [](const TensorNorm& a, const TensorNorm& b) { return a.tensor < b.tensor; });
  return decide_update_in_order(norms, clip_norm, trained_tokens);
}

UpdateDecision decide_update_in_order(std::span<const TensorNorm> norms,
                                      double clip_norm,
                                      std::uint64_t trained_tokens) {
  double sum = 0;
  for (const TensorNorm& one : norms) sum += one.sum_of_squares;
  UpdateDecision decision;
  decision.norm = std::sqrt(sum);
  decision.skip = !std::isfinite(decision.norm) || trained_tokens == 0;
  if (clip_norm > 0 && decision.norm > clip_norm)
    decision.gradient_scale = clip_norm / decision.norm;
  return decision;
}

std::uint64_t state_hash_of(std::vector<std::pair<std::uint32_t, std::uint64_t>> hashes) {
  std::sort(hashes.begin(), hashes.end());
  std::vector<std::uint64_t> words;
  words.reserve(2 * hashes.size());
  for (const auto& [tensor, hash] : hashes) {
    words.push_back(tensor);
    words.push_back(hash);
  }
  return XXH3_64bits(words.data(), words.size() * sizeof(std::uint64_t));
}

}  // namespace troupe
